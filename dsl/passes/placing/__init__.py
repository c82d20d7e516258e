"""What `place`, `partition` and `lower_spanning` share: requests, groups, schedules, and where control flow runs."""
