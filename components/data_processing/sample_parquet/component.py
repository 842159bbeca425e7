"""Component: a small real data set as Parquet."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def sample_parquet(source: dsl.Output[dsl.Dataset]) -> None:
    """Write a data set of 569 tumours with 30 measurements each, label column malignant, to try a cluster with.

    Args:
        source: Folder with one Parquet file, made from a data set of scikit-learn; no network is needed.
    """
    from dkan_core import write_sample

    write_sample(f"{source.path}/sample.parquet")
