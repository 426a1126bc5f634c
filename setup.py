"""Builds pywan._core: the C primitives and the Cython hot path, as one extension. Metadata is in pyproject.toml."""
import glob
import os

from Cython.Build import cythonize
from setuptools import Extension, setup

# PYWAN_SANITIZE=address,undefined (or thread) builds the extension for a sanitizer run; PYWAN_DEBUG=1 keeps
# WAN_CHECK's expensive half (positions after every step) and symbols.
sanitize = os.environ.get("PYWAN_SANITIZE", "")
debug = bool(os.environ.get("PYWAN_DEBUG")) or bool(sanitize)

compile_args = ["-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden", "-D_GNU_SOURCE"]
compile_args += ["-O1", "-g", "-fno-omit-frame-pointer", "-DWAN_DEBUG=1"] if debug else ["-O3", "-g1"]
link_args = ["-pthread"]
if sanitize:
    compile_args.append(f"-fsanitize={sanitize}")
    link_args.append(f"-fsanitize={sanitize}")

# Cython copies the headers beside the C file that it makes, and only those with a later time: after a checkout within the same
# second the compiler would find the old ones.
for copied in glob.glob("build/csrc/**/*.h", recursive=True):
    os.unlink(copied)

core = Extension(
    "pywan._core",
    sources=["csrc/_core.pyx", *sorted(glob.glob("csrc/*/wan_*.c"))],
    depends=[*glob.glob("csrc/*/*.h"), *glob.glob("csrc/*.pxi"), *glob.glob("csrc/*.pxd")],
    include_dirs=["csrc"],
    extra_compile_args=compile_args,
    extra_link_args=link_args,
)

setup(
    ext_modules=cythonize(
        [core],
        compiler_directives={
            "language_level": 3,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
        },
        build_dir="build",
    )
)
