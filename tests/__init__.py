"""Tests of dmondrian; a package so that `laws` can use `reference`."""
