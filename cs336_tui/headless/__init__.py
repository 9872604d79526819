"""The headless front end: the same core as the app, without a screen."""
