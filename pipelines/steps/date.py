"""The date of a run, for places that are to be others in every run of a schedule."""

from components.deployment.fill_in_date import fill_in_date
from pipelines.form import Values, bind
from pipelines.pods import Settings, configure_pod


def with_date(values: Values, settings: Settings) -> Values:
    """Return the values of a form, with the date of the run where some of them may say {date}."""
    # Not kfp's placeholder for the time of a run: servers before 2.17 and the local runner do not fill it in.
    dated = configure_pod(bind(fill_in_date, values), values, settings, is_control=True)
    return {
        name: dated.outputs[name] if name in fill_in_date.component_spec.inputs else value
        for name, value in values.items()
    }
