# Owns making one value of each row of several columns: a msgpack map {name: value}.
from libc.stdint cimport int64_t
from pywan._core.values.arrow_values cimport (
    ARROW_COLUMN, ARROW_TOO_LARGE, ArrowValues, arrow_problem, arrow_put_rows, column_error, column_too_large,
    take_arrow)
from pywan._core.c_arrow cimport *
from pywan._core.values.column_views cimport COLUMN_TAGGED, ColumnRows
from pywan._core.values.columns cimport Column


cdef ArrowValues field_of(object source, str name):
    """A column as a field of the rows. An Arrow array is read where it is; anything else becomes a Column first."""
    cdef ArrowValues values = ArrowValues()
    cdef ArrowSchema *schema
    cdef Column column
    if not isinstance(source, Column) and hasattr(source, "__arrow_c_array__"):
        schema = take_arrow(source, name, &values.array, values.held)
        values.read(schema, &values.array, name, 1)
        return values
    column = source if isinstance(source, Column) else Column(source, name)
    values.held.append(column)
    values.root.kind, values.root.column, values.root.length = ARROW_COLUMN, &column.view, column.view.length
    return values


cdef class RowMaps:
    """The rows of several columns (anything that `Column` takes), each a map {name: value}. Keeps the columns' memory
    alive."""

    def __init__(self, names, columns):
        cdef list fields = []
        cdef ArrowValues field
        cdef int64_t rows = 0
        names, columns = list(names), list(columns)
        if len(names) != len(columns) or not names:
            raise column_error(f"{len(names)} names for {len(columns)} columns; give each column its name, and at least"
                               " one column")
        for name, source in zip(names, columns):
            if not isinstance(name, str):
                raise column_error(f"column name {name!r} is {type(name).__name__}; names are str")
            field = field_of(source, name)
            if not fields:
                rows = field.root.length
            elif field.root.length != rows:
                raise column_error(f"column {name!r} has {field.root.length} rows, column {names[0]!r} has {rows}; "
                                   f"columns that are encoded together have the same length")
            fields.append(field)
        self.fields = ArrowValues()
        self.fields.add_fields(names, fields)
        self.fields.root.length = rows

    def __len__(self):
        return self.fields.root.length

    cdef int lay_out(self, ColumnRows *rows) except -1:
        """Appends all rows to `rows`, which have room for their number."""
        cdef int64_t bad_row = 0
        cdef int status
        with nogil:
            status = arrow_put_rows(&self.fields.root, rows, &bad_row)
        if status < 0:
            raise MemoryError(f"no memory for {self.fields.root.length} encoded rows")
        if status > 0:
            make_error = column_too_large if status == ARROW_TOO_LARGE else column_error
            raise make_error(f"row {bad_row}: {arrow_problem(status)}")
        return 0


def encode_rows(names, columns):
    """Makes one column of msgpack maps {name: value} from the rows of several columns (anything that `Column` takes).

    Bytes become bin, str becomes str, a null nil, an integer its shortest form, a float float64. Lists, structs and
    maps become what they hold. """
    cdef RowMaps maps = RowMaps(names, columns)
    cdef Column result = Column.__new__(Column)
    result.name = "rows"
    result._start_rows(len(maps), -1, len(maps) * 32)
    maps.lay_out(&result.owned)
    result._view_owned(COLUMN_TAGGED)
    return result
