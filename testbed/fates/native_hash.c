/* `chain`, `draw` and `flow_start` of the fate hash, for the compiled build.

   `testbed/fates/fate_hash.py` has these functions in Python, with their documentation; tests compare both. In Python a step
   takes a third of a microsecond, because integers of more than 30 bits have several digits.

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

/* Read a word of 64 bits. Returns -1, with the error set, if the number is not one. */
static int read_word(PyObject *number, uint64_t *word)
{
    *word = PyLong_AsUnsignedLongLong(number);
    return *word == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

static uint64_t absorb(uint64_t state, uint64_t word) { return mix64((state + GOLDEN) ^ word); }

static int check_count(const char *name, Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, given);
    return -1;
}

static int check_tuple(const char *name, PyObject *words)
{
    if (PyTuple_Check(words))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes a tuple of words", name);
    return -1;
}

/* Read a MAC; one of less than 6 bytes is padded with zeros. Returns -1, with the error set, if it is not one. */
static int read_address(PyObject *bytes, uint64_t *address)
{
    char *octets;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &octets, &size))
        return -1;
    if (size > 6) {
        PyErr_Format(PyExc_ValueError, "a MAC has 6 bytes, not %zd", size);
        return -1;
    }
    *address = 0;
    for (Py_ssize_t i = 0; i < 6; i++)
        *address = *address << 8 | (i < size ? (unsigned char)octets[i] : 0);
    return 0;
}

static PyObject *chain(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    uint64_t state, word;
    if (check_count("chain", given, 2) || read_word(arguments[0], &state) || check_tuple("chain", arguments[1]))
        return NULL;
    Py_ssize_t count = PyTuple_Size(arguments[1]);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_word(PyTuple_GetItem(arguments[1], i), &word))
            return NULL;
        state = absorb(state, word);
    }
    return PyLong_FromUnsignedLongLong(state);
}

static PyObject *draw(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    uint64_t start, n;
    if (check_count("draw", given, 2) || read_word(arguments[0], &start) || read_word(arguments[1], &n))
        return NULL;
    return PyLong_FromUnsignedLongLong(mix64(start + n * GOLDEN));
}

static PyObject *flow_start(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    uint64_t state, ethertype, destination, source, stream;
    if (check_count("flow_start", given, 6) || read_word(arguments[0], &state) || read_word(arguments[1], &ethertype)
        || read_address(arguments[2], &destination) || read_address(arguments[3], &source)
        || check_tuple("flow_start", arguments[4]) || read_word(arguments[5], &stream))
        return NULL;
    Py_ssize_t count = PyTuple_Size(arguments[4]);
    state = absorb(state, destination << 16 | ethertype);
    state = absorb(state, source << 16 | (uint64_t)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t word = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(arguments[4], i)); /* the lowest 64 bits */
        if (word == (uint64_t)-1 && PyErr_Occurred())
            return NULL;
        state = absorb(state, word);
    }
    return PyLong_FromUnsignedLongLong(absorb(state, stream));
}

static PyMethodDef methods[] = {
    {"chain", (PyCFunction)(void (*)(void))chain, METH_FASTCALL, NULL},
    {"draw", (PyCFunction)(void (*)(void))draw, METH_FASTCALL, NULL},
    {"flow_start", (PyCFunction)(void (*)(void))flow_start, METH_FASTCALL, NULL},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "testbed.fates.native_hash", NULL, 0, methods,
};

PyMODINIT_FUNC PyInit_native_hash(void) { return PyModuleDef_Init(&definition); }
