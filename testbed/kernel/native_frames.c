/* Reception and transmission of frames by packet sockets in C: FrameCalls and Arena of the compiled build.

   `testbed/kernel/interpreted_frames.py` has these two classes in Python, with their documentation; tests compare both.
   Python's socket raises an exception for each read of an empty socket, and takes a system call for each frame; for a
   short batch, recvmmsg and sendmmsg by ctypes take longer than the kernel's work.

   Only the stable ABI of Python 3.11 is used. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

enum {
    BURST = 16,                 /* frames that FrameCalls reads ahead */
    BATCH = 64,                 /* maximum frames per call of an Arena */
    FRONT = 10,                 /* struct virtio_net_hdr, before each frame of an Arena */
    SLOT = FRONT + 65535 + 22,  /* header and the largest frame, with two VLAN tags */
    MIN_LENGTH = FRONT + 14,    /* header and Ethernet header */
    UNUSUAL = TP_STATUS_VLAN_VALID | TP_STATUS_CSUMNOTREADY,
    MAX_ATTEMPTS = 20
};

static const int64_t SECOND = 1000000000, MAX_GAP = 2000;  /* ns */

static int is_down(int reason) { return reason == ENETDOWN || reason == ENXIO || reason == ENODEV; }

/* ---- FrameCalls ---- */

typedef struct {
    PyObject_HEAD
    PyObject *packet_socket;  /* the socket, a Python object */
    int descriptor;    /* of the socket; -1: closed */
    Py_ssize_t max_size;
    int next, count;  /* index of the next frame that was read ahead, and number of these frames */
    int is_busy;      /* the last read returned a frame, so more may be pending */
    char *frames;     /* BURST buffers of `max_size` bytes */
    struct iovec vectors[BURST];
    struct mmsghdr messages[BURST];
} FrameCalls;

static PyObject *calls_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"packet_socket", "max_size", NULL};
    PyObject *packet_socket;
    Py_ssize_t max_size;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "On", names, &packet_socket, &max_size))
        return NULL;
    if (max_size < 1) {
        PyErr_Format(PyExc_ValueError, "max_size must be 1 byte or more, got %zd", max_size);
        return NULL;
    }
    int descriptor = PyObject_AsFileDescriptor(packet_socket);
    if (descriptor < 0)
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    FrameCalls *self = (FrameCalls *)allocate(type, 0);  /* all zero */
    if (self == NULL)
        return NULL;
    Py_INCREF(packet_socket);
    self->packet_socket = packet_socket;
    self->descriptor = descriptor;
    self->max_size = max_size;
    self->frames = PyMem_Malloc((size_t)max_size * BURST);  /* only used pages take memory */
    if (self->frames == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (int i = 0; i < BURST; i++) {
        self->vectors[i] = (struct iovec){self->frames + i * max_size, (size_t)max_size};
        self->messages[i].msg_hdr = (struct msghdr){.msg_iov = &self->vectors[i], .msg_iovlen = 1};
    }
    return (PyObject *)self;
}

static void calls_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(((FrameCalls *)object)->frames);
    Py_XDECREF(((FrameCalls *)object)->packet_socket);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *calls_receive(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    FrameCalls *self = (FrameCalls *)object;
    while (self->next == self->count) {
        /* The first frame after a pause is mostly alone, and recv takes less time than recvmmsg. Neither call blocks,
           so the GIL is kept. */
        ssize_t result;  /* bytes of recv, or frames of recvmmsg */
        if (self->is_busy) {
            result = recvmmsg(self->descriptor, self->messages, BURST, MSG_DONTWAIT, NULL);
        } else {
            result = recv(self->descriptor, self->frames, (size_t)self->max_size, MSG_DONTWAIT);
            if (result >= 0) {
                self->is_busy = 1;
                return PyBytes_FromStringAndSize(self->frames, result);
            }
        }
        if (result >= 0) {
            self->next = 0;
            self->count = (int)result;
            continue;
        }
        self->is_busy = 0;
        if (errno == EAGAIN || is_down(errno))
            Py_RETURN_NONE;
        if (errno != EINTR)
            return PyErr_SetFromErrno(PyExc_OSError);
        if (PyErr_CheckSignals())
            return NULL;
    }
    int index = self->next++;
    return PyBytes_FromStringAndSize(self->vectors[index].iov_base, (Py_ssize_t)self->messages[index].msg_len);
}

static PyObject *calls_send(PyObject *object, PyObject *frame)
{
    FrameCalls *self = (FrameCalls *)object;
    Py_buffer view;
    if (PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE))
        return NULL;
    int descriptor = self->descriptor, reason, interrupted;
    ssize_t sent;
    do {
        Py_BEGIN_ALLOW_THREADS
        sent = send(descriptor, view.buf, (size_t)view.len, 0);
        reason = errno;
        Py_END_ALLOW_THREADS
        interrupted = sent < 0 && reason == EINTR;
        if (interrupted && PyErr_CheckSignals()) {
            PyBuffer_Release(&view);
            return NULL;
        }
    } while (interrupted);
    PyBuffer_Release(&view);
    if (sent < 0) {
        errno = reason;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromSsize_t(sent);
}

static PyObject *calls_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    FrameCalls *self = (FrameCalls *)object;
    self->descriptor = -1;
    self->next = self->count = self->is_busy = 0;
    return PyObject_CallMethod(self->packet_socket, "close", NULL);
}

static PyMethodDef calls_methods[] = {
    {"receive", calls_receive, METH_NOARGS, NULL},
    {"send", calls_send, METH_O, NULL},
    {"close", calls_close, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new},
    {Py_tp_dealloc, calls_dealloc},
    {Py_tp_methods, calls_methods},
    {0},
};

static PyType_Spec calls_spec = {
    "testbed.kernel.native_frames.FrameCalls", sizeof(FrameCalls), 0, Py_TPFLAGS_DEFAULT, calls_slots,
};

/* ---- Arena ---- */

typedef struct {
    _Alignas(struct cmsghdr) char stamp[CMSG_SPACE(sizeof(struct timespec))];
    char auxiliary[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
} Control;

typedef struct {
    PyObject_HEAD
    char *frames;  /* BATCH slots; only used pages take memory */
    Control controls[BATCH];
    struct iovec vectors[2 * BATCH];  /* to receive: one for each frame; to send: one for its header, one for itself */
    struct mmsghdr messages[BATCH];
} Arena;

static PyObject *arena_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "", names))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Arena *self = (Arena *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    void *memory = mmap(NULL, (size_t)SLOT * BATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->frames = memory;
    return (PyObject *)self;
}

static void arena_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Arena *self = (Arena *)object;
    if (self->frames != NULL)
        munmap(self->frames, (size_t)SLOT * BATCH);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static int64_t nanoseconds(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* Return the monotonic time, and how far the wall clock is ahead of it, as `interpreted_frames._clocks` does. */
static int64_t clocks(int64_t *clock_offset)
{
    int64_t before = nanoseconds(CLOCK_MONOTONIC), wall = 0, after = before;
    for (int i = 0; i < MAX_ATTEMPTS; i++) {
        wall = nanoseconds(CLOCK_REALTIME);
        after = nanoseconds(CLOCK_MONOTONIC);
        if (after - before <= MAX_GAP)
            break;
        before = after;
    }
    *clock_offset = wall - before;
    return after;
}

/* Read a frame's timestamp (wall clock) and auxiliary data. */
static void read_control(struct msghdr *header, int64_t *stamp, struct tpacket_auxdata *auxiliary)
{
    *stamp = 0;
    memset(auxiliary, 0, sizeof *auxiliary);
    for (struct cmsghdr *control = CMSG_FIRSTHDR(header); control != NULL; control = CMSG_NXTHDR(header, control)) {
        if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec time;
            memcpy(&time, CMSG_DATA(control), sizeof time);
            *stamp = time.tv_sec * SECOND + time.tv_nsec;
        } else if (control->cmsg_level == SOL_PACKET && control->cmsg_type == PACKET_AUXDATA) {
            memcpy(auxiliary, CMSG_DATA(control), sizeof *auxiliary);
        }
    }
}

/* Call convert(header, frame, length, status, tci, tpid), a FrameConverter; `frame` is valid during the call. */
static PyObject *call_converter(
    PyObject *convert, const char *slot, Py_ssize_t length, const struct tpacket_auxdata *auxiliary)
{
    Py_ssize_t captured = length < SLOT ? length : SLOT;
    PyObject *view = PyMemoryView_FromMemory((char *)slot + FRONT, captured - FRONT, PyBUF_READ);
    if (view == NULL)
        return NULL;
    PyObject *frame = PyObject_CallFunction(
        convert, "y#OnIII", slot, (Py_ssize_t)FRONT, view, length - FRONT, (unsigned)auxiliary->tp_status,
        (unsigned)auxiliary->tp_vlan_tci, (unsigned)auxiliary->tp_vlan_tpid);
    if (frame != NULL) {
        PyObject *released = PyObject_CallMethod(view, "release", NULL);  /* BufferError if it is still in use */
        if (released == NULL)
            Py_CLEAR(frame);
        Py_XDECREF(released);
    }
    Py_DECREF(view);
    return frame;
}

static PyObject *arena_receive(PyObject *object, PyObject *arguments)
{
    Arena *self = (Arena *)object;
    int descriptor, max_frames;
    long long earliest;
    Py_ssize_t max_size;
    PyObject *convert;
    if (!PyArg_ParseTuple(arguments, "iiLnO", &descriptor, &max_frames, &earliest, &max_size, &convert))
        return NULL;
    if (max_frames < 1 || max_frames > BATCH) {
        PyErr_Format(PyExc_ValueError, "max_frames must be 1 to %d, got %d", BATCH, max_frames);
        return NULL;
    }
    for (int i = 0; i < max_frames; i++) {
        self->vectors[i] = (struct iovec){self->frames + (size_t)i * SLOT, SLOT};
        self->messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &self->vectors[i], .msg_iovlen = 1,
            .msg_control = &self->controls[i], .msg_controllen = sizeof(Control),
        };
    }
    /* The call does not block, so the GIL is kept. */
    int count = recvmmsg(descriptor, self->messages, (unsigned)max_frames, MSG_DONTWAIT | MSG_TRUNC, NULL);
    if (count < 0) {
        if (errno != EAGAIN && errno != EINTR && !is_down(errno))
            return PyErr_SetFromErrno(PyExc_OSError);
        count = 0;
    }
    PyObject *received = PyList_New(0);
    if (received == NULL)
        return NULL;
    int64_t clock_offset = 0, now = count ? clocks(&clock_offset) : 0;
    for (int i = 0; i < count; i++) {
        const char *slot = self->frames + (size_t)i * SLOT;
        Py_ssize_t length = self->messages[i].msg_len;
        int64_t stamp;
        struct tpacket_auxdata auxiliary;
        read_control(&self->messages[i].msg_hdr, &stamp, &auxiliary);
        stamp -= clock_offset;
        if (stamp > now)
            stamp = now;
        if (stamp < earliest)
            stamp = earliest;
        earliest = stamp;
        if (length < MIN_LENGTH)
            continue;
        PyObject *frame = length - FRONT <= max_size && !(auxiliary.tp_status & UNUSUAL)
                              ? PyBytes_FromStringAndSize(slot + FRONT, length - FRONT)
                              : call_converter(convert, slot, length, &auxiliary);
        if (frame == NULL)
            goto failed;
        if (frame == Py_None) {
            Py_DECREF(frame);
            continue;
        }
        PyObject *entry = Py_BuildValue("(LN)", (long long)stamp, frame);  /* takes the frame's reference in any case */
        if (entry == NULL)
            goto failed;
        int appended = PyList_Append(received, entry);
        Py_DECREF(entry);
        if (appended)
            goto failed;
    }
    return Py_BuildValue("(iLN)", count, (long long)clock_offset, received);
failed:
    Py_DECREF(received);
    return NULL;
}

static PyObject *arena_send(PyObject *object, PyObject *arguments)
{
    static char no_offloads[FRONT];
    Arena *self = (Arena *)object;
    int descriptor, index;
    PyObject *frames, *headers;
    if (!PyArg_ParseTuple(arguments, "iiO!O!", &descriptor, &index, &PyList_Type, &frames, &PyList_Type, &headers))
        return NULL;
    Py_ssize_t count = PyList_Size(frames);
    if (count > BATCH || (PyList_Size(headers) != 0 && PyList_Size(headers) != count)) {
        PyErr_Format(
            PyExc_ValueError,
            "a batch has at most %d frames, and no headers or as many as frames, got %zd frames and %zd headers",
            BATCH, count, PyList_Size(headers));
        return NULL;
    }
    struct sockaddr_ll destination = {.sll_family = AF_PACKET, .sll_ifindex = index};
    for (Py_ssize_t i = 0; i < count; i++) {
        struct iovec *vector = &self->vectors[2 * i];
        char *data, *header = no_offloads;
        Py_ssize_t size, front = FRONT;
        if (PyBytes_AsStringAndSize(PyList_GetItem(frames, i), &data, &size))
            return NULL;
        if (PyList_Size(headers) && PyBytes_AsStringAndSize(PyList_GetItem(headers, i), &header, &front))
            return NULL;
        vector[0] = (struct iovec){header, (size_t)front};
        vector[1] = (struct iovec){data, (size_t)size};
        self->messages[i].msg_hdr = (struct msghdr){
            .msg_name = &destination, .msg_namelen = sizeof destination, .msg_iov = vector, .msg_iovlen = 2,
        };
    }
    /* The call does not block, so the GIL is kept, and with it the frames stay valid. */
    int sent = 0, reason = 0;
    while (sent < count) {
        int accepted = sendmmsg(descriptor, self->messages + sent, (unsigned)(count - sent), MSG_DONTWAIT);
        if (accepted > 0) {
            sent += accepted;
        } else if (errno != EINTR) {
            reason = errno;
            break;
        }
    }
    return Py_BuildValue("(ii)", sent, reason);
}

static PyMethodDef arena_methods[] = {
    {"receive", arena_receive, METH_VARARGS, NULL},
    {"send", arena_send, METH_VARARGS, NULL},
    {NULL},
};

static PyType_Slot arena_slots[] = {
    {Py_tp_new, arena_new},
    {Py_tp_dealloc, arena_dealloc},
    {Py_tp_methods, arena_methods},
    {0},
};

static PyType_Spec arena_spec = {
    "testbed.kernel.native_frames.Arena", sizeof(Arena), 0, Py_TPFLAGS_DEFAULT, arena_slots,
};

/* ---- The module ---- */

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return -1;
    int added = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return added;
}

static int execute(PyObject *module)
{
    return add_type(module, "FrameCalls", &calls_spec) || add_type(module, "Arena", &arena_spec) ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "testbed.kernel.native_frames", NULL, 0, NULL, module_slots,
};

PyMODINIT_FUNC PyInit_native_frames(void) { return PyModuleDef_Init(&definition); }
