"""Compiles the native extension, with nothing but a C++ compiler: ``python -m dkan_core.native.build``.

``hatch_build.py`` does so when the package is built or installed. No headers of Python or torch are needed, since the
library knows neither: one file serves every version of both.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "src"
LIBRARY = FOLDER / "_passes.so"
"""Beside this module, whatever the platform's own ending."""

# Without -ffast-math: NaN and infinity are what they are in PyTorch.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-pthread")
# By default, GCC from 14 on fuses a product with its sum only where it takes that to be faster: in one tile of rows but
# not in another, so that what comes out for a row depends on the rows beside it. GCC before 8 has no such choice.
FUSE_ALL = ("--param", "avoid-fma-max-bits=0")
X86 = ("x86_64", "AMD64")
AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma", "-mprefer-vector-width=512")
VARIANTS = {"avx512": AVX512, "avx2": ("-mavx2", "-mfma")}
"""Of x86, in addition to the one for any processor."""

BF16_VARIANTS = {
    "avx512_bf16": (*AVX512, "-mavx512bf16"),
    "amx_bf16": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
"""Kinds with products of bfloat16; the second has all that the first has. Compilers of before 2020 know neither."""

VARIANT_NAMES = {
    "DKAN_VARIANT": "",
    "DKAN_HIDDEN_PASSES": "hidden_passes_",
    "DKAN_HIDDEN_PRODUCTS": "hidden_products_",
    "DKAN_INPUT_PASSES": "input_passes_",
    "DKAN_ADAMW": "adamw_",
    "DKAN_ENCODE": "encode_",
    "DKAN_SCATTER": "scatter_",
    "DKAN_MIX_ROWS": "mix_rows_",
    "DKAN_LIKELIHOOD_SUMS": "likelihood_sums_",
    "DKAN_ADD_CODES": "add_codes_",
}
"""What a kind of processor's functions are called: macro and beginning of the name."""

VARIANT_SOURCES = {
    "passes": "fast",
    "hidden_layer": "fast",
    "hidden_product": "fast",
    "input_layer": "fast",
    "adamw": "off",
    "encoding": "off",
    "hashing": "off",
    "likelihood": "fast",
}
"""Compiled for each kind of processor; "off": operations round one by one, as numpy's do."""

ONCE = (
    "threads",
    "gather",
    "sorting",
    "hidden_call",
    "hidden_product_call",
    "input_layer_call",
    "input_entries",
)
"""Compiled for any processor, as is ``library``, which alone is told what there is."""

ONLY = {"amx_bf16": ("input_layer",)}
"""What a kind of processor has of its own: the rest is that of ``avx512_bf16``."""


class NoCompilerError(Exception):
    """There is no C++ compiler, or it does not compile the sources; the message says which and why."""


def fingerprint() -> str:
    """Return what tells these sources from others: a library that was built of others is not to be called."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: that in ``CXX``, or the first usual one there is.

    Raises:
        NoCompilerError: There is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    raise NoCompilerError(f"no C++ compiler: {named[0] if named else 'c++, g++ or clang++'} is not in PATH")


def compile_library(target: Path = LIBRARY) -> None:
    """Compile the extension; the file appears whole or not at all.

    Raises:
        NoCompilerError: There is no compiler, or it fails.
    """
    compiler = find_compiler()
    variants: dict[str, tuple[str, ...]] = {"portable": (), **(VARIANTS if platform.machine() in X86 else {})}
    known = [f'-DDKAN_FINGERPRINT="{fingerprint()}"']
    for name, flags in BF16_VARIANTS.items() if platform.machine() in X86 else ():
        kind = name.replace("avx512_", "avx512").replace("_", "-")
        if not _accepts(compiler, flags, f'__builtin_cpu_supports("{kind}")'):
            break
        variants[name] = flags
        known.append(f"-DDKAN_{name.upper()}")
    fused = FUSE_ALL if _accepts(compiler, FUSE_ALL) else ()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".passes-") as scratch:
        objects = [_compile(compiler, source, Path(scratch) / f"{source}.o", ()) for source in ONCE]
        objects.append(_compile(compiler, "library", Path(scratch) / "library.o", known))
        for name, flags in variants.items():
            names = [f"-D{macro}={prefix}{name}" for macro, prefix in VARIANT_NAMES.items()]
            for source in ONLY.get(name, VARIANT_SOURCES):
                contract = VARIANT_SOURCES[source]
                options = (*flags, *fused, *names, f"-ffp-contract={contract}")
                objects.append(_compile(compiler, source, Path(scratch) / f"{source}-{name}.o", options))
        library = Path(scratch) / "library.so"
        # Into the library itself, where the compiler can: the machine that runs it may have an older one.
        static = ("-static-libstdc++", "-static-libgcc") if sys.platform == "linux" else ()
        _run([*compiler, "-shared", "-pthread", *static, *map(str, objects), "-o", str(library)])
        library.replace(target)


def _accepts(compiler: Sequence[str], flags: Sequence[str], test: str = "0") -> bool:
    """Return whether a compiler takes flags, and code that returns what ``test`` says."""
    command = [*compiler, *flags, "-x", "c++", "-S", "-o", os.devnull, "-"]
    probe = f"int main() {{ return {test}; }}"
    return subprocess.run(command, input=probe, capture_output=True, text=True, check=False).returncode == 0


def _compile(compiler: Sequence[str], source: str, target: Path, options: Sequence[str]) -> Path:
    _run([*compiler, *FLAGS, *options, "-c", str(SOURCES / f"{source}.cpp"), "-o", str(target)])
    return target


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompilerError(f"{command[0]} does not compile the native extension:\n{done.stderr.strip()}")


if __name__ == "__main__":
    try:
        compile_library()
    except NoCompilerError as error:
        sys.exit(str(error))
