"""Compiles the native extension into the wheel, and into a checkout that is installed in place.

Without a compiler, or with ``DKAN_NATIVE=0``, the package is built without it and works all the same, only slower.
"""

import importlib.util
import os
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD_MODULE = "dkan_core/native/build.py"


class NativeExtension(BuildHookInterface):
    """The hook that hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel by the machine that it was compiled for."""
        build = _load(Path(self.root) / BUILD_MODULE)
        if os.environ.get("DKAN_NATIVE") == "0":
            build.LIBRARY.unlink(missing_ok=True)
            return
        try:
            build.compile_library()
        except build.NoCompilerError as error:
            build.LIBRARY.unlink(missing_ok=True)
            self.app.display_warning(f"dkan is built without its native extension: {error}")
            return
        if version == "standard":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["artifacts"].append(str(build.LIBRARY.relative_to(self.root)))
            build_data["pure_python"] = False
            # It knows neither Python nor torch: one wheel serves every version of both.
            build_data["tag"] = f"py3-none-{platform}"


def _load(path: Path) -> ModuleType:
    # By its path: the package itself needs libraries that a build has not.
    spec = importlib.util.spec_from_file_location("native_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
