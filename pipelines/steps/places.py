"""The places of a run: all steps reach them, and some are others in every run of a schedule, by its date."""

from components.deployment.resolve_places import resolve_places
from pipelines.form import Values, bind
from pipelines.pods import VOLUME_PATH, Settings, configure_pod


def resolve(values: Values, settings: Settings) -> Values:
    """Return the values of a form, its places checked, with the date of the run where some of them may say {date}."""
    # Not kfp's placeholder for the time of a run: servers before 2.17 and the local runner do not fill it in.
    task = bind(resolve_places, values, volume_path=VOLUME_PATH if settings.volume else "")
    resolved = configure_pod(task, values, settings, is_control=True, is_retried=False)
    return {
        name: resolved.outputs[name] if name in resolve_places.component_spec.outputs else value
        for name, value in values.items()
    }
