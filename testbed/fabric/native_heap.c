/* The heap of an event queue, native: the compiled build's Heap, heappush and heappop.

   `testbed/fabric/event_heap.py` has them in Python: a list and the functions of heapq, which compare entries as tuples.
   Here an entry's first two items, its time and sequence number, are compared as machine integers. No two entries have the
   same sequence number, so both return entries in the same order; tests compare them.

   Only the stable ABI of Python 3.11 is used. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>

typedef struct {
    long long when;  /* LLONG_MIN and LLONG_MAX stand for all times beyond them */
    long long sequence;
    PyObject *entry;
} Item;

typedef struct {
    PyObject_HEAD
    Item *items;
    Py_ssize_t count, capacity;
} Heap;

static int heap_traverse(PyObject *object, visitproc visit, void *arg)
{
    Heap *self = (Heap *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t i = 0; i < self->count; i++)
        Py_VISIT(self->items[i].entry);
    return 0;
}

static int heap_clear(PyObject *object)
{
    Heap *self = (Heap *)object;
    Item *items = self->items;
    Py_ssize_t count = self->count;
    self->items = NULL;
    self->count = self->capacity = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        Py_DECREF(items[i].entry);
    PyMem_Free(items);
    return 0;
}

static void heap_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    heap_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static Py_ssize_t heap_length(PyObject *object) { return ((Heap *)object)->count; }

/* Return the entry at an index of the heap's array. Only index 0 has a defined meaning: the first entry. */
static PyObject *heap_item(PyObject *object, Py_ssize_t index)
{
    Heap *self = (Heap *)object;
    if (index < 0 || index >= self->count) {
        PyErr_SetString(PyExc_IndexError, "heap index out of range");
        return NULL;
    }
    return Py_NewRef(self->items[index].entry);
}

static PyType_Slot heap_slots[] = {
    {Py_tp_dealloc, heap_dealloc},
    {Py_tp_traverse, heap_traverse},
    {Py_tp_clear, heap_clear},
    {Py_sq_length, heap_length},
    {Py_sq_item, heap_item},
    {0},
};

static PyType_Spec heap_spec = {
    "testbed.fabric.native_heap.Heap", sizeof(Heap), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, heap_slots,
};

/* Return 1 if a comes before b, 0 if not, -1 with an error set. */
static int is_before(const Item *a, const Item *b)
{
    if (a->when != b->when)
        return a->when < b->when;
    if (a->when == LLONG_MAX || a->when == LLONG_MIN) {
        PyObject *first = PyTuple_GetItem(a->entry, 0), *second = PyTuple_GetItem(b->entry, 0);
        int is_equal = PyObject_RichCompareBool(first, second, Py_EQ);
        if (is_equal <= 0)
            return is_equal < 0 ? -1 : PyObject_RichCompareBool(first, second, Py_LT);
    }
    return a->sequence < b->sequence;
}

/* Move an item up from an empty place to where it belongs. Return 0, or -1 with an error set. */
static int rise(Item *items, Py_ssize_t place, Item item)
{
    while (place > 0) {
        Py_ssize_t parent = (place - 1) / 2;
        int before = is_before(&item, &items[parent]);
        if (before < 0) {
            items[place] = item;
            return -1;
        }
        if (!before)
            break;
        items[place] = items[parent];
        place = parent;
    }
    items[place] = item;
    return 0;
}

/* Insert an item after the first one has been removed: move the empty place down along the smaller children, and the item up
   from there. Return 0, or -1 with an error set. */
static int sink(Item *items, Py_ssize_t count, Item item)
{
    Py_ssize_t place = 0, child;
    while ((child = 2 * place + 1) < count) {
        if (child + 1 < count) {
            int before = is_before(&items[child + 1], &items[child]);
            if (before < 0) {
                items[place] = item;
                return -1;
            }
            child += before;
        }
        items[place] = items[child];
        place = child;
    }
    return rise(items, place, item);
}

/* Return the first argument, which must be a heap, of `expected` arguments; NULL with an error set for others. */
static Heap *read_heap(PyObject *module, const char *name, PyObject *const *arguments, Py_ssize_t given, Py_ssize_t expected)
{
    if (given != expected) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, given);
        return NULL;
    }
    if (!PyObject_TypeCheck(arguments[0], *(PyTypeObject **)PyModule_GetState(module))) {
        PyErr_Format(PyExc_TypeError, "%s takes a heap", name);
        return NULL;
    }
    return (Heap *)arguments[0];
}

/* Read the first two items of an entry. Return 0, or -1 with an error set if they are not a time and a sequence number. */
static int read_item(PyObject *entry, Item *item)
{
    if (!PyTuple_Check(entry) || PyTuple_Size(entry) < 2 || !PyLong_Check(PyTuple_GetItem(entry, 0))) {
        PyErr_SetString(PyExc_TypeError, "an entry is a tuple that begins with a time and a sequence number");
        return -1;
    }
    int beyond;
    item->entry = entry;
    item->when = PyLong_AsLongLongAndOverflow(PyTuple_GetItem(entry, 0), &beyond);
    if (beyond)
        item->when = beyond > 0 ? LLONG_MAX : LLONG_MIN;
    item->sequence = PyLong_AsLongLong(PyTuple_GetItem(entry, 1));
    return item->sequence == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *heappush(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    Heap *heap = read_heap(module, "heappush", arguments, given, 2);
    Item item;
    if (heap == NULL || read_item(arguments[1], &item))
        return NULL;
    if (heap->count == heap->capacity) {
        Py_ssize_t capacity = heap->capacity ? 2 * heap->capacity : 16;
        Item *items = PyMem_Realloc(heap->items, (size_t)capacity * sizeof(Item));
        if (items == NULL)
            return PyErr_NoMemory();
        heap->items = items;
        heap->capacity = capacity;
    }
    Py_INCREF(item.entry);
    if (rise(heap->items, heap->count++, item))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *heappop(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    Heap *heap = read_heap(module, "heappop", arguments, given, 1);
    if (heap == NULL)
        return NULL;
    if (heap->count == 0) {
        PyErr_SetString(PyExc_IndexError, "the heap is empty");
        return NULL;
    }
    PyObject *entry = heap->items[0].entry;
    heap->count--;
    if (heap->count && sink(heap->items, heap->count, heap->items[heap->count])) {
        Py_DECREF(entry);
        return NULL;
    }
    return entry;
}

static PyMethodDef methods[] = {
    {"heappush", (PyCFunction)(void (*)(void))heappush, METH_FASTCALL, NULL},
    {"heappop", (PyCFunction)(void (*)(void))heappop, METH_FASTCALL, NULL},
    {0},
};

static int execute(PyObject *module)
{
    PyObject **type = PyModule_GetState(module);
    *type = PyType_FromSpec(&heap_spec);
    return *type == NULL ? -1 : PyModule_AddObjectRef(module, "Heap", *type);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(*(PyObject **)PyModule_GetState(module));
    return 0;
}

static int module_clear(PyObject *module)
{
    Py_CLEAR(*(PyObject **)PyModule_GetState(module));
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "testbed.fabric.native_heap", NULL, sizeof(PyObject *), methods, module_slots,
    module_traverse, module_clear,
};

PyMODINIT_FUNC PyInit_native_heap(void) { return PyModuleDef_Init(&definition); }
