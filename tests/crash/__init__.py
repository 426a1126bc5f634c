"""Owns the crash campaign: a persistent sender and a persistent receiver, killed with SIGKILL at random moments under
load.
"""

from .campaign import CampaignFailure, run

__all__ = ["CampaignFailure", "run"]
