"""The pictures of README and docs are there, and show the pages as they are."""

import json

from PIL import Image

from docs.pictures import IMAGES, STAMP, WIDTHS, fingerprint


def test_pictures_show_the_pages_as_they_are() -> None:
    shown = json.loads(STAMP.read_text())["pages"]
    assert shown == fingerprint(), "the pages look otherwise than on the pictures: run `python -m docs.pictures`"


def test_pictures_have_the_widths_that_they_are_said_to_have() -> None:
    for width in WIDTHS:
        for name in ("report", "explanation"):
            for before in ("", "before-"):
                with Image.open(IMAGES / f"{before}{name}-{width}.png") as image:
                    colors = image.convert("L").getcolors()
                    assert image.width == width and colors is not None and len(colors) > 10
