"""Builds pywan._core: the C primitives and all Cython units as one shared object. The metadata is in pyproject.toml."""

import glob
import gzip
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython import __version__ as cython_version
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "packaging"))  # A build looks for no modules beside this file.
import declare_c

# PYWAN_SANITIZE=address,undefined (or thread) builds the extension for a sanitizer run. PYWAN_DEBUG=1 keeps symbols and
# the expensive half of WAN_CHECK (positions after every step). PYWAN_FAST=1 compiles in about half the time, for tests
# that measure nothing. PYWAN_BUILD_CACHE names a folder that keeps Cython's output for other trees and later builds.
sanitize = os.environ.get("PYWAN_SANITIZE", "")
debug = bool(os.environ.get("PYWAN_DEBUG")) or bool(sanitize)
fast = bool(os.environ.get("PYWAN_FAST")) and not debug

compile_args = [
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Wformat",
    "-Werror=format-security",  # The Python of some distributions compiles with it.
    "-Wno-unused-parameter",
    "-fvisibility=hidden",
    "-D_GNU_SOURCE",
    "-Icsrc",
]
if debug:
    compile_args += ["-O1", "-g1" if sanitize else "-g", "-fno-omit-frame-pointer", "-DWAN_DEBUG=1"]
else:
    compile_args += ["-O1", "-g0"] if fast else ["-O3", "-g1"]
link_args = ["-pthread"]
if sanitize:
    compile_args.append(f"-fsanitize={sanitize}")
    link_args.append(f"-fsanitize={sanitize}")

CORE = "pywan._core"
UNITS = sorted(str(Path(path).relative_to("pywan/_core").with_suffix("")) for path in glob.glob("pywan/_core/*/*.pyx"))
# A generated unit with code that Cython would otherwise put into every unit that takes a buffer.
SHARED = "_shared"
GENERATED = "build/cython"  # Cython's output. It is the same for every way of compiling.
# Objects of a build for this tree. `pip install -e` and `build_ext --inplace` share them, so each is compiled once.
OBJECTS = "build/objects" + ("-debug" if debug else "-fast" if fast else "")
CACHED_FILES_MAX = 1_500  # In the cache of Cython's output: about 130 MB, 23 versions of everything.
DIRECTIVES = {"language_level": 3, "cdivision": True, "initializedcheck": False, "embedsignature": True}

core = Extension(
    f"{CORE}._units",
    sources=[*(f"pywan/_core/{unit}.pyx" for unit in UNITS), *sorted(glob.glob("csrc/*/wan_*.c"))],
    depends=[*glob.glob("csrc/*/*.h"), *glob.glob("pywan/_core/**/*.pxd", recursive=True)],
)


def declare_headers():
    """Declares csrc to Cython: what is added to a header is declared by this."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))
    try:
        declare_c.declare(compiler)
    except FileNotFoundError:
        raise no_compiler(compiler[0]) from None


def no_compiler(name):
    return SystemExit(
        f"the C compiler {name!r} is not there: install one (Debian and Ubuntu: apt install gcc libc6-dev), or name "
        "another one in CC"
    )


class Translations:
    """Cython's output, a C file for each unit. A unit is translated again when what it is made of has other content.

    Beside each C file lies a `.key`: a hash of the unit, of the declarations that it uses, and of Cython's version and
    directives. So neither times nor folders count, and other trees can use what the cache has under the same key.
    """

    def __init__(self, cache):
        self.cache = Path(cache) if cache else None
        self.used = {}  # By file: the files that it names, with all that those name.
        self.directives = f"{cython_version} {sorted(DIRECTIVES.items())}"

    def source(self, unit):
        return f"pywan/_core/{unit}.c" if unit == SHARED else f"pywan/_core/{unit}.pyx"

    def made(self, unit):
        return Path(GENERATED, "pywan", "_core", f"{unit}.c")

    def key(self, unit):
        """Returns a hash of all that the C file of a unit is made of."""
        digest = hashlib.sha256(f"{self.directives} {unit}".encode())
        for path in [] if unit == SHARED else sorted(self.made_of(self.source(unit))):
            content = Path(path).read_bytes()
            digest.update(f" {path} {len(content)} ".encode() + content)
        return digest.hexdigest()

    def made_of(self, path):
        """Returns a file and all files of declarations that it may use: its own, and those of each unit it names.

        Declarations of Cython itself are left out: they go with its version.
        """
        found, left = {path}, [path]
        while left:
            at = left.pop()
            if at not in self.used:
                named = set(re.findall(r"\bpywan\._core\.([\w.]+)", Path(at).read_text()))
                own = Path(at).with_suffix(".pxd")
                self.used[at] = [str(own), *(f"pywan/_core/{unit.replace('.', '/')}.pxd" for unit in named)]
            for used in self.used[at]:
                if used not in found and os.path.exists(used):
                    found.add(used)
                    left.append(used)
        return found

    def update(self):
        """Makes the C file of every unit current. Returns the files."""
        units = [*UNITS, SHARED]
        keys = {unit: self.key(unit) for unit in units}
        late = [unit for unit in units if not self.is_current(unit, keys[unit])]
        late = [unit for unit in late if not self.take_cached(unit, keys[unit])]
        if late:
            cythonize(
                [Extension(f"{CORE}.{unit.replace('/', '.')}", [self.source(unit)]) for unit in late],
                compiler_directives=DIRECTIVES,
                build_dir=GENERATED,
                shared_utility_qualified_name=f"{CORE}.{SHARED}",
                nthreads=os.cpu_count() or 1,
                quiet=True,
                force=True,
            )
        for unit in late:
            self.made(unit).with_suffix(".key").write_text(keys[unit])
            self.keep(unit, keys[unit])
        self.drop_oldest()
        return [str(self.made(unit)) for unit in units]

    def is_current(self, unit, key):
        try:
            return self.made(unit).with_suffix(".key").read_text() == key and self.made(unit).exists()
        except FileNotFoundError:
            return False

    def cached(self, unit, key):
        return self.cache / f"{Path(unit).name}-{key}.c.gz"

    def take_cached(self, unit, key):
        """Returns whether the cache has the C file of a unit, which is in its place then."""
        if not self.cache:
            return False
        try:
            content = gzip.decompress(self.cached(unit, key).read_bytes())
            os.utime(self.cached(unit, key))
        except (OSError, EOFError, zlib.error):
            return False  # It is not there, or damaged: Cython translates the unit again.
        if not content:
            return False  # A power cut left it empty.
        made = self.made(unit)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.with_suffix(".key").unlink(missing_ok=True)
        if not made.exists() or made.read_bytes() != content:  # What has not changed is not compiled again.
            made.write_bytes(content)
        made.with_suffix(".key").write_text(key)
        return True

    def keep(self, unit, key):
        """Puts the C file of a unit into the cache, as a whole: other builds may do the same at the same time."""
        if not self.cache:
            return
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.cache, prefix="new-", delete=False) as file:
                file.write(gzip.compress(self.made(unit).read_bytes(), 6))
            os.replace(file.name, self.cached(unit, key))
        except OSError as error:
            sys.stderr.write(f"{self.cache}: the cache of builds takes nothing ({error}); the build goes on without\n")
            self.cache = None

    def drop_oldest(self):
        """Removes from the cache what was not used for the longest time, above CACHED_FILES_MAX files."""
        files = list(self.cache.glob("*")) if self.cache else []
        if len(files) > CACHED_FILES_MAX:
            try:
                files.sort(key=lambda path: path.stat().st_mtime)
            except FileNotFoundError:
                return  # Another build drops them now.
            for path in files[: len(files) - CACHED_FILES_MAX]:
                path.unlink(missing_ok=True)


class BuildCore(build_ext):
    """Compiles each unit on its own, several at a time and only those that changed, and links them together.

    Python finds each unit's init function in the one file by the unit's name: see pywan/_core/__init__.py.
    """

    def run(self):
        if self.inplace or self.editable_mode:
            self.build_temp = OBJECTS
        super().run()

    def build_extension(self, extension):
        """Compiles the sources that changed, the largest first, and links all objects."""
        check_headers()
        declare_headers()
        translated = Translations(os.environ.get("PYWAN_BUILD_CACHE")).update()
        sources = [*translated, *(source for source in extension.sources if source.endswith(".c"))]
        # An environment's own folder is empty, as a rule. `make wheel` builds in an environment with another name each
        # time: with that in the command, ccache would find nothing.
        folders = [path for path in self.compiler.include_dirs if os.path.isdir(path) and os.listdir(path)]
        command = [*self.compiler.compiler_so, *compile_args, *(f"-I{path}" for path in folders)]
        jobs = {Path(self.build_temp, source).with_suffix(".o"): source for source in sources}
        # The longest sources come first, so that none of them is begun last.
        late = sorted(
            (target for target in jobs if self.force or is_late(target, command)),
            key=lambda target: -os.path.getsize(jobs[target]),
        )
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(lambda target: compile_one(command, jobs[target], target), late))
        # Every build repeats the warnings of the objects that it did not make again.
        for warned in (target.with_suffix(".warnings") for target in jobs):
            if warned.exists():
                sys.stderr.write(warned.read_text())
        to = self.get_ext_fullpath(extension.name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        if late or not os.path.exists(to) or os.path.getmtime(to) < max(target.stat().st_mtime for target in jobs):
            self.compiler.link_shared_object(
                [str(made) for made in jobs], to, extra_postargs=link_args, build_temp=self.build_temp
            )


def check_headers():
    """Says what to install if this Python came without the files that its extensions are compiled with."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise SystemExit(
            f"{header} is not there: pywan's core is compiled, and needs the headers of the Python that it is for.\n"
            "Install them (Debian and Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel), or use a "
            "Python that has them"
        )


def is_late(target, command):
    """Returns whether an object is older than a file that it was made of, or was made by another command."""
    try:
        when = target.stat().st_mtime
        if target.with_suffix(".command").read_text() != shlex.join(command):
            return True
        needs = target.with_suffix(".d").read_text().replace("\\\n", " ").partition(": ")[2].split()
        return any(os.path.getmtime(path) > when for path in needs)
    except FileNotFoundError:
        return True


def compile_one(command, source, target):
    """Compiles a source. The compiler's warnings, if there are any, are kept beside the object."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without this file the object counts as late. So an interrupted compilation is done again.
    target.with_suffix(".command").unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [*command, "-c", source, "-o", str(target), "-MMD", "-MF", str(target.with_suffix(".d"))],
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError:
        raise no_compiler(command[0]) from None
    if done.returncode:
        raise SystemExit(f"{source} cannot be compiled:\n{done.stderr}")
    target.with_suffix(".warnings").unlink(missing_ok=True)
    if done.stderr:
        target.with_suffix(".warnings").write_text(done.stderr)
    target.with_suffix(".command").write_text(shlex.join(command))


if __name__ == "__main__":
    setup(ext_modules=[core], cmdclass={"build_ext": BuildCore})
