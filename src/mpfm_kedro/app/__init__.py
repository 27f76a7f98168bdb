"""A page for people: drop images, see what a production model says of them, and teach it what it got wrong.

The server listens on this machine alone (127.0.0.1). ``kedro app`` starts it, or without a project
``python -m mpfm_kedro.app --model FOLDER``.
"""
