"""The native extension for tests: they are left out where it could not be built, and say why."""

import pytest

from dkan_core.native.build import NoCompilerError, find_compiler
from dkan_core.native.library import native_library


def why_missing() -> str:
    """Return why there is no extension, an empty text if there is one."""
    if native_library() is not None:
        return ""
    try:
        find_compiler()
    except NoCompilerError as error:
        return str(error)
    return "the native extension is not built: python -m dkan_core.native.build"


needs_native = pytest.mark.skipif(native_library() is None, reason=why_missing())
