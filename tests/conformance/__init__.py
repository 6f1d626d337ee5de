"""Conformance tests of the format of signed releases: they run any client by its command line.

A client is a program with three commands; each ends with 0, or with another code if it refuses the release:

    CLIENT verify  --trust DIR RELEASE           accepts the release, or not; changes nothing
    CLIENT install --trust DIR RELEASE TARGET    makes TARGET a copy of the files of an accepted release
    CLIENT list    --trust DIR RELEASE           prints `DIGEST  NAME` of each file of an accepted release, by name

DIR is what a device trusts, as in /etc/edge-toolchain; RELEASE is a folder as in `releases` of a store. The manual
describes both, in docs/security.md. `python -m tests.conformance CLIENT...` runs the tests and prints a table; without
CLIENT it runs the clients of this project: the runner, Python, and ssh-keygen with a few lines around it.
"""
