"""The gallery: study files, each drawn as it says, with what is in the figure beside it as CSV."""

from roofline.reports.gallery.build import FOLDER, build, write

__all__ = ["FOLDER", "build", "write"]
