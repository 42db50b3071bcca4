"""Runs the cells of a notebook one after another in one namespace, without Jupyter. Usage: notebook.py NOTEBOOK"""
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    notebook = json.load(file)
cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
names = {"__name__": "__main__"}
for number, source in enumerate(cells, 1):
    try:
        exec(compile(source, f"cell {number}", "exec"), names)
    except Exception:
        print(f"cell {number} failed:\n{source}", file=sys.stderr)
        raise
print(f"{len(cells)} cells ran")
