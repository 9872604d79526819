"""Settings of all tests."""

from hypothesis import settings

# A shared machine may pause for longer than any deadline; slowness is not what these tests are about.
settings.register_profile("here", deadline=None)
settings.load_profile("here")
