"""Build without the extensions that include torch's headers."""

from setuptools import Extension
from setuptools.command.build_ext import build_ext


class CppExtension(Extension):
    """Extension that includes torch's headers."""


class BuildExtension(build_ext):
    """Build of all other extensions."""

    def finalize_options(self):
        modules = self.distribution.ext_modules
        self.distribution.ext_modules = [one for one in modules if not isinstance(one, CppExtension)]
        super().finalize_options()
