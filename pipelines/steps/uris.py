"""URIs of a run: every step can reach them, and some contain the date of the run."""

from components.deployment.resolve_uris import resolve_uris
from pipelines.form import Values, bind
from pipelines.pods import VOLUME_PATH, Settings, configure_pod


def resolve(values: Values, settings: Settings) -> Values:
    """Return the values of a form, its URIs checked and {date} in them replaced by the date of the run."""
    # kfp's placeholder for the time of a run is not filled in by servers before 2.17 and by the local runner.
    task = bind(resolve_uris, values, volume_path=VOLUME_PATH if settings.volume else "")
    resolved = configure_pod(task, values, settings, is_control=True, is_retried=False)
    return {
        name: resolved.outputs[name] if name in resolve_uris.component_spec.outputs else value
        for name, value in values.items()
    }
