"""What strangers, members and coordinators that lie say of a site, in a few runs of `fuzz_coordination`."""

import fuzz_coordination


def test_an_honest_site_goes_on_whatever_strangers_members_and_coordinators_say():
    assert fuzz_coordination.fuzz(7, lambda runs: runs >= 60) == 60


def test_an_encrypted_site_goes_on_whatever_they_say_and_whoever_damages_what_is_encrypted():
    assert fuzz_coordination.fuzz(7, lambda runs: runs >= 60, tls=True) == 60
