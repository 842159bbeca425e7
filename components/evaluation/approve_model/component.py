"""Component: the gate before a model is published."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def approve_model(
    average_precision: float,
    min_average_precision: float = 0.0,
    previous_average_precision: float = 0.0,
    comparable: bool = True,
) -> bool:
    """Decide whether a model may be published: it is good enough, and no worse than the earlier one.

    Args:
        average_precision: Average precision of the model on the test split.
        min_average_precision: A model with a lower average precision is not published.
        previous_average_precision: That of the earlier model on the same rows; 0 if there is none.
        comparable: False if there is an earlier model that could not be scored: it is then not replaced.

    Returns:
        Whether it is approved.
    """
    return comparable and average_precision >= max(min_average_precision, previous_average_precision)
