"""``dkan verify``: looks for damage in prepared data."""

from typing import Annotated

from dkan_core.cli.app import PANEL, app
from dkan_core.cli.options import JsonFile, OverwriteJson, Prepared, command, option
from dkan_core.cli.results import result_printer


@command(app, panel=PANEL, examples=["dkan verify prepared", "dkan verify s3://bucket/prepared --split train"])
def verify(
    prepared: Prepared,
    split: Annotated[
        list[str] | None, option("--split", help="Split to read; may be repeated. Default: all.", group="Data")
    ] = None,
    overwrite: OverwriteJson = False,
    json_file: JsonFile = None,
) -> None:
    """Read every block of prepared data and compare it with its hash; name the file and block of any damage."""
    from dkan_core.data.loading.verification import verify as verify_data

    with result_printer(json_file, overwrite=overwrite) as show:
        found = verify_data(prepared, split or ())
        show(found.to_dict(), found)
