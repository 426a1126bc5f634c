"""What setup.py translates again: a unit whose content, or whose declarations, are other ones; nothing else."""

import json
import shutil
import subprocess
import sys

import pytest

from support.tree import ROOT

pytestmark = pytest.mark.nightly  # Copies of the tree are built.

pytest.importorskip("Cython")

# Runs setup.py's translations in the current folder, in a process of its own: Cython remembers folders and files.
PROGRAM = """
import importlib.util, json, pathlib, sys
spec = importlib.util.spec_from_file_location("setup_of_a_tree", sys.argv[1])
setup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup)
translated, cythonize = [], setup.cythonize
def watched(extensions, **options):
    translated.extend(extension.name.rpartition(".")[2] for extension in extensions)
    return cythonize(extensions, **options)
setup.cythonize = watched
made = setup.Translations(sys.argv[2]).update()
print(json.dumps([sorted(translated), {pathlib.Path(path).stem: open(path).read() for path in made}]))
"""
SETUP = ROOT / "setup.py"
UNITS = {
    "room/first.pyx": "from pywan._core.words cimport word\ncdef long twice = 2 * word\n",
    "room/second.pyx": "cdef long alone = 7\n",
    "words.pxd": "cdef enum: word = 3\n",
}


class Tree:
    """A source tree with two units, of which one uses declarations, and the setup.py of this project."""

    def __init__(self, folder):
        core = folder / "pywan" / "_core"
        (core / "room").mkdir(parents=True)
        for path in (core.parent / "__init__.py", core / "__init__.py", core / "room" / "__init__.py"):
            path.write_text("")
        for name, text in UNITS.items():
            (core / name).write_text(text)
        self.folder = folder

    def change(self, name, text):
        path = self.folder / "pywan" / "_core" / name
        path.write_text(path.read_text() + text)

    def translate(self, cache=""):
        """Returns the names of the units that Cython translates, and the C files of all units."""
        command = [sys.executable, "-c", PROGRAM, str(SETUP), str(cache)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        translated, made = json.loads(done.stdout)
        return translated, made


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "tree")


def test_a_unit_is_translated_again_when_it_or_what_it_uses_has_other_content(tree):
    assert tree.translate()[0] == ["_shared", "first", "second"]
    assert tree.translate()[0] == []
    tree.change("words.pxd", "# Used by the first unit.\n")
    assert tree.translate()[0] == ["first"]
    tree.change("room/second.pyx", "cdef long more = 8\n")
    assert tree.translate()[0] == ["second"]


def test_every_file_that_cython_reads_for_a_unit_counts():
    program = """
import glob, importlib.util, sys
from Cython.Build.Dependencies import create_dependency_tree
spec = importlib.util.spec_from_file_location("setup_of_a_tree", "setup.py")
setup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup)
setup.declare_headers()
translations, tree = setup.Translations(""), create_dependency_tree(quiet=True)
for path in glob.glob("pywan/_core/*/*.pyx"):
    read = {file for file in tree.all_dependencies(path) if file.startswith("pywan/")}
    assert read and read <= translations.made_of(path), (path, read - translations.made_of(path))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=SETUP.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_times_of_files_do_not_count(tree):
    tree.translate()
    for path in (tree.folder / "pywan" / "_core").rglob("*.p*"):
        path.touch()
    assert tree.translate()[0] == []


def test_another_tree_takes_what_the_cache_has(tree, tmp_path):
    cache = tmp_path / "cache"
    _, made = tree.translate(cache)
    other = Tree(tmp_path / "another" / "place")
    other.change("room/second.pyx", "cdef long more = 8\n")
    translated, made_there = other.translate(cache)
    assert translated == ["second"]
    assert made_there["first"] == made["first"]
    assert made_there["second"] != made["second"]


def test_a_damaged_file_of_the_cache_is_made_again(tree, tmp_path):
    cache = tmp_path / "cache"
    _, made = tree.translate(cache)
    for path in cache.glob("first-*"):
        path.write_bytes(path.read_bytes()[:100])
    shutil.rmtree(tree.folder / "build")
    assert tree.translate(cache) == (["first"], made)
    shutil.rmtree(tree.folder / "build")
    assert tree.translate(cache) == ([], made)
