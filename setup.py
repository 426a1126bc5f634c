"""Builds pywan._core: the C primitives and all Cython units as one shared object. The metadata is in pyproject.toml."""

import glob
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# PYWAN_SANITIZE=address,undefined (or thread) builds the extension for a sanitizer run. PYWAN_DEBUG=1 keeps symbols and
# the expensive half of WAN_CHECK (positions after every step).
sanitize = os.environ.get("PYWAN_SANITIZE", "")
debug = bool(os.environ.get("PYWAN_DEBUG")) or bool(sanitize)

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
compile_args += (
    ["-O1", "-g1" if sanitize else "-g", "-fno-omit-frame-pointer", "-DWAN_DEBUG=1"] if debug else ["-O3", "-g1"]
)
link_args = ["-pthread"]
if sanitize:
    compile_args.append(f"-fsanitize={sanitize}")
    link_args.append(f"-fsanitize={sanitize}")

CORE = "pywan._core"
UNITS = sorted(Path(path).stem for path in glob.glob("pywan/_core/*.pyx"))
# A generated unit with code that Cython would otherwise put into every unit that takes a buffer.
SHARED = "_shared"
GENERATED = "build/cython"  # Cython's output. It is the same for every way of compiling.

core = Extension(
    f"{CORE}._units",
    sources=[*(f"pywan/_core/{unit}.pyx" for unit in UNITS), *sorted(glob.glob("csrc/*/wan_*.c"))],
    depends=[*glob.glob("csrc/*/*.h"), *glob.glob("pywan/_core/*.pxd")],
)


def rows_of(header, macro):
    """Returns the words of each row `X(word, word, "...")` of a table in a C header, without its numbers."""
    text = Path("csrc", header).read_text().partition(f"#define {macro}(")[2].partition("\n")[2]
    rows = []
    for line in text.splitlines():
        row = re.match(r"\s*[A-Z]+\(((?:\w+, )+)", line)
        if row:
            rows.append([word for word in row[1].split(", ") if word and not word.isdigit()])
        if not line.endswith("\\"):
            return rows


def declare_tables():
    """Declares to Cython the tables in C headers. A row that is added there is declared by this."""
    queue, receiver, failures = (
        [row[0] for row in rows_of(*table)]
        for table in (
            ("session/wan_counts.h", "WAN_QUEUE_COUNTERS"),
            ("session/wan_counts.h", "WAN_RECEIVER_COUNTERS"),
            ("record/wan_failure.h", "WAN_FAILURES"),
        )
    )
    fields = [
        row if len(row) == 2 else ["uint8_t", *row] for row in rows_of("record/wan_record.h", "WAN_RECORD_FIELDS")
    ]
    lines = "\n        ".join(f"{type_} {name}" for type_, name in fields)
    text = f"""# Made by setup.py from csrc: session/wan_counts.h, record/wan_failure.h and record/wan_record.h.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport wan_status

cdef extern from "session/wan_counts.h" nogil:
    ctypedef struct wan_queue_counts:
        uint64_t {", ".join(queue)}
    ctypedef struct wan_receiver_counts:
        uint64_t {", ".join(receiver)}
    ctypedef struct wan_counter:
        uint64_t number, value
    ctypedef struct wan_counter_row:
        int number
        const char *field
        const char *statistic
        const char *entry
        const char *part_of
        const char *about
    enum: WAN_QUEUE_COUNTERS_COUNT, WAN_RECEIVER_COUNTERS_COUNT
    const wan_counter_row wan_queue_counter_rows[WAN_QUEUE_COUNTERS_COUNT]
    const wan_counter_row wan_receiver_counter_rows[WAN_RECEIVER_COUNTERS_COUNT]
    uint32_t wan_queue_counts_save(const wan_queue_counts *counts, wan_counter *saved)
    wan_status wan_queue_counts_load(wan_queue_counts *counts, const wan_counter *saved, uint32_t count)

cdef extern from "record/wan_failure.h" nogil:
    enum: WAN_PARK_PARTITIONS, WAN_FAILURES_COUNT
    enum: {", ".join(f"WAN_FAILED_{name}" for name in failures)}
    ctypedef struct wan_failure_row:
        int number
        const char *text
    const wan_failure_row wan_failure_rows[WAN_FAILURES_COUNT]

cdef extern from "record/wan_record.h" nogil:
    ctypedef struct wan_record:
        {lines}
    ctypedef struct wan_record_field:
        int bits
        const char *name
        const char *about
    enum: WAN_RECORD_FIELDS_COUNT
    const wan_record_field wan_record_fields[WAN_RECORD_FIELDS_COUNT]
"""
    made = Path("pywan/_core/c_tables.pxd")
    if not made.exists() or made.read_text() != text:
        made.write_text(text)


class BuildCore(build_ext):
    """Compiles each unit on its own, several at a time and only those that changed, and links them together.

    Python finds each unit's init function in the one file by the unit's name: see pywan/_core/__init__.py.
    """

    def generate(self, sources):
        """Lets Cython translate all units together. Returns all C files."""
        declare_tables()
        units = [Extension(f"{CORE}.{unit}", [f"pywan/_core/{unit}.pyx"]) for unit in UNITS]
        made = cythonize(
            [*units, Extension(f"{CORE}.{SHARED}", [f"pywan/_core/{SHARED}.c"])],
            compiler_directives={
                "language_level": 3,
                "cdivision": True,
                "initializedcheck": False,
                "embedsignature": True,
            },
            build_dir=GENERATED,
            shared_utility_qualified_name=f"{CORE}.{SHARED}",
            nthreads=os.cpu_count() or 1,
            quiet=True,
        )
        return [*(unit.sources[0] for unit in made), *(source for source in sources if source.endswith(".c"))]

    def build_extension(self, extension):
        """Compiles the sources that changed, the largest first, and links all objects."""
        sources = self.generate(extension.sources)
        command = [*self.compiler.compiler_so, *compile_args, *(f"-I{path}" for path in self.compiler.include_dirs)]
        jobs = {Path(self.build_temp, source).with_suffix(".o"): source for source in sources}
        # The longest sources come first, so that none of them is begun last.
        late = sorted(
            (target for target in jobs if self.force or is_late(target, command)),
            key=lambda target: -os.path.getsize(jobs[target]),
        )
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for warnings in pool.map(lambda target: compile_one(command, jobs[target], target), late):
                sys.stderr.write(warnings)
        to = self.get_ext_fullpath(extension.name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        if late or not os.path.exists(to) or os.path.getmtime(to) < max(target.stat().st_mtime for target in jobs):
            self.compiler.link_shared_object(
                [str(made) for made in jobs], to, extra_postargs=link_args, build_temp=self.build_temp
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
    """Compiles a source. Returns the compiler's warnings."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without this file the object counts as late. So an interrupted compilation is done again.
    target.with_suffix(".command").unlink(missing_ok=True)
    done = subprocess.run(
        [*command, "-c", source, "-o", str(target), "-MMD", "-MF", str(target.with_suffix(".d"))],
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{source} cannot be compiled:\n{done.stderr}")
    target.with_suffix(".command").write_text(shlex.join(command))
    return done.stderr


setup(ext_modules=[core], cmdclass={"build_ext": BuildCore})
