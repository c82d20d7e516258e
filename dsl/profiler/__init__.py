"""Profiles: what ran when, on which thread and device, and what it cost. `dsl.profile` is the way in."""

from dsl.profiler.profiles import Profile, profile
from dsl.profiler.timeline import Event, Inside

__all__ = ["Event", "Inside", "Profile", "profile"]
