"""The model that comes with Pippin, as data. It is a package so that setuptools installs it without a warning."""
