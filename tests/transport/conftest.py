"""Owns the number of connections that a test of this room may hold."""

import resource

import pytest

from support.strangers import FLOOD


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * FLOOD + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the system gives {hard} descriptors, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
