"""The recipes of configs/recipes by name. Not here: what a recipe says (repro.experiments.recipe)."""

from __future__ import annotations

from pathlib import Path

from repro.experiments.errors import nearest
from repro.experiments.recipe import Recipe, load_recipe


class Library:
    """Reads each file once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, Recipe] = {}

    def recipe(self, name: str, *, where: str) -> Recipe:
        """The recipe `name`; raises ValueError with the nearest file name, said by `where`."""
        if name not in self._loaded:
            path = self._folder / f"{name}.yaml"
            if not path.is_file():
                known = sorted(p.stem for p in self._folder.glob("*.yaml"))
                raise ValueError(f"{where}: no recipe {name!r} in {self._folder}{nearest(name, known)}")
            recipe = load_recipe(path)
            if recipe.name != name:
                raise ValueError(f"{path}: name is {recipe.name!r}, the file says {name!r}")
            self._loaded[name] = recipe
        return self._loaded[name]
