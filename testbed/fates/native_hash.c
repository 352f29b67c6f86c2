/* The hash's steps, native: the compiled build's `chain` and `draw`.

   `testbed/fates/fate_hash.py` has the same two functions in Python, with their documentation; tests hold both
   against each other. Python's integers of more than 30 bits are objects with several digits, so that a step takes them
   a third of a microsecond.

   Only the stable ABI of Python 3.11 is used. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15;

static uint64_t mix64(uint64_t word)
{
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9;
    word = (word ^ word >> 27) * 0x94D049BB133111EB;
    return word ^ word >> 31;
}

/* Read a word of 64 bits. -1: it is none, and the error is set. */
static int read_word(PyObject *number, uint64_t *word)
{
    *word = PyLong_AsUnsignedLongLong(number);
    return *word == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

static int check_count(const char *name, Py_ssize_t given)
{
    if (given == 2)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes 2 arguments, not %zd", name, given);
    return -1;
}

static PyObject *chain(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    uint64_t state, word;
    if (check_count("chain", given) || read_word(arguments[0], &state))
        return NULL;
    if (!PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "chain takes a tuple of words");
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(arguments[1]);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_word(PyTuple_GetItem(arguments[1], i), &word))
            return NULL;
        state = mix64((state + GOLDEN) ^ word);
    }
    return PyLong_FromUnsignedLongLong(state);
}

static PyObject *draw(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    uint64_t start, n;
    if (check_count("draw", given) || read_word(arguments[0], &start) || read_word(arguments[1], &n))
        return NULL;
    return PyLong_FromUnsignedLongLong(mix64(start + n * GOLDEN));
}

static PyMethodDef methods[] = {
    {"chain", (PyCFunction)(void (*)(void))chain, METH_FASTCALL, NULL},
    {"draw", (PyCFunction)(void (*)(void))draw, METH_FASTCALL, NULL},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "testbed.fates.native_hash", NULL, 0, methods,
};

PyMODINIT_FUNC PyInit_native_hash(void) { return PyModuleDef_Init(&definition); }
