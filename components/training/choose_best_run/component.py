"""Component: several runs to the best of them."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def choose_best_run(models: dsl.Input[list[dsl.Model]], model: dsl.Output[dsl.Model]) -> int:
    """Choose the run with the highest validation average precision.

    Args:
        models: Run folders that train_fastkan wrote.
        model: The best one.

    Returns:
        Its position in the list, from 0; the first in case of a tie.
    """
    from dkan_core import choose_best

    best = choose_best([run.path for run in models], model.path)
    model.metadata.update(models[best].metadata)
    return best
