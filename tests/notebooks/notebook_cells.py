"""What the cells of a notebook have shown."""

import ast


def outputs(book, name):
    (cell,) = [cell for cell in book.cells if cell.id == name]
    return cell.outputs


def value(book, name):
    """Return what the cell of this id displays as its result."""
    (result,) = [output for output in outputs(book, name) if output.output_type == "execute_result"]
    return ast.literal_eval(result.data["text/plain"])
