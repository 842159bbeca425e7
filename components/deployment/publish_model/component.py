"""Component: an approved model to where others fetch it."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def publish_model(
    model: dsl.Input[dsl.Model],
    metrics: dsl.Input[dsl.Metrics],
    published: dsl.Output[dsl.Model],
    publish_uri: str = "",
) -> None:
    """Publish a model: only its folder, with the test metrics in its card.

    Args:
        model: Run folder that train_fastkan wrote.
        metrics: Test metrics of evaluate_fastkan, for the model card.
        published: The model's folder: weights, architecture, encoding, metrics and card.
        publish_uri: Folder or bucket for the model, where it replaces an earlier one. In a pipeline, {date} is the
            run's date. Empty: only the artifact.
    """
    from dkan_core import publish

    publish(model.path, published.path, metrics.metadata)
    if publish_uri:
        publish(published.path, publish_uri)
    published.metadata["uri"] = publish_uri or published.uri
