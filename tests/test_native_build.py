"""The native extension is built by a plain compiler, and says what is wrong where it cannot be."""

import ctypes
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dkan_core.native import build
from dkan_core.native.build import NoCompilerError, compile_library, find_compiler
from dkan_core.native.library import native_library, variant_names

COMPILE, FLAGS = build._compile, build.FLAGS


def have_compiler() -> bool:
    try:
        find_compiler()
    except NoCompilerError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not have_compiler(), reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def quick_build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Do not optimize what is only loaded, which is nine tenths of the time, nor compile anything twice."""
    kept, compile_source = tmp_path_factory.mktemp("objects"), build._compile
    compiled: dict[object, Path] = {}

    def compile_once(compiler: Sequence[str], source: str, target: Path, options: Sequence[str]) -> Path:
        key = (source, *options)
        if key not in compiled:
            compiled[key] = compile_source(compiler, source, kept / f"{len(compiled)}.o", options)
        return Path(shutil.copy(compiled[key], target))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS))
        patch.setattr(build, "_compile", compile_once)
        yield


@pytest.fixture(scope="module")
def built(quick_build: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("built") / "passes.so"
    compile_library(target)
    return target


@needs_compiler
def test_a_compiler_is_all_it_takes(built: Path) -> None:
    library = native_library(built)
    assert library is not None and variant_names(library)[-1] == "portable"
    assert [path.name for path in built.parent.iterdir()] == ["passes.so"]


@needs_compiler
@pytest.mark.usefixtures("quick_build")
@pytest.mark.parametrize("kind", build.BF16_VARIANTS)
def test_compilers_need_not_know_bfloat16(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(build.BF16_VARIANTS, kind, ("-mavx-of-tomorrow",))
    compile_library(tmp_path / "passes.so")
    library = native_library(tmp_path / "passes.so")
    assert library is not None and kind not in variant_names(library)


@pytest.fixture
def one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile a single source, with all optimizations."""
    single = {
        "ONCE": (),
        "VARIANTS": {"avx2": build.VARIANTS["avx2"]},
        "BF16_VARIANTS": {},
        "VARIANT_SOURCES": {"hidden_product": "fast"},
        "ONLY": {"portable": ()},
    }
    for name, value in {**single, "_compile": COMPILE, "FLAGS": FLAGS}.items():
        monkeypatch.setattr(build, name, value)


@needs_compiler
@pytest.mark.usefixtures("one_source")
def test_compiler_does_not_choose_which_products_it_fuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GCC 14 does by default, and earlier ones if they are told to."""
    choosing = ("--param", "avoid-fma-max-bits=512")
    if not build._accepts(find_compiler(), choosing):
        pytest.skip("this compiler does not know the choice")
    libraries = []
    for command in (find_compiler(), [*find_compiler(), *choosing]):
        monkeypatch.setenv("CXX", shlex.join(command))
        compile_library(tmp_path / "passes.so")
        libraries.append((tmp_path / "passes.so").read_bytes())
    assert libraries[0] == libraries[1]


@needs_compiler
@pytest.mark.usefixtures("one_source")
def test_compiler_need_not_know_that_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FUSE_ALL", ("--param", "fuse-of-tomorrow=0"))
    monkeypatch.setattr(build, "VARIANT_SOURCES", {"adamw": "off"})
    compile_library(tmp_path / "passes.so")
    assert [path.name for path in tmp_path.iterdir()] == ["passes.so"]


@needs_compiler
def test_extension_of_other_sources_is_none(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shutil.copy(built, tmp_path / "passes.so")
    sources = shutil.copytree(build.SOURCES, tmp_path / "src")
    (sources / "adamw.cpp").write_text("// of a later version")
    monkeypatch.setattr(build, "SOURCES", sources)
    assert ctypes.CDLL(str(other)) is not None
    assert native_library(other) is None


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompilerError, match=r"no C\+\+ compiler: c\+\+, g\+\+ or clang\+\+ is not in PATH"):
        compile_library(tmp_path / "passes.so")
    monkeypatch.setenv("CXX", "ccache g++-99")
    with pytest.raises(NoCompilerError, match="ccache is not in PATH"):
        compile_library(tmp_path / "passes.so")


def test_failing_compiler_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(NoCompilerError, match="false does not compile the native extension"):
        compile_library(tmp_path / "passes.so")
    assert not [*tmp_path.iterdir()]
