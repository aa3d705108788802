// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers, views and parts of them. Owns struct buffer.
 */
#include "native.h"

struct buffer *buffer_new(struct pool *pool, struct buffer *parent, char *ptr, bool named,
			  size_t bytes)
{
	struct buffer *b = PyObject_GC_New(struct buffer, pool->buffer_type);

	if (!b)
		return NULL;
	Py_INCREF((PyObject *)pool);
	b->pool = pool;
	b->parent = parent;
	b->weakrefs = NULL;
	b->ptr = ptr;
	b->named = named;
	b->bytes = bytes;
	b->exports = 0;
	PyObject_GC_Track(b);
	return b;
}

/* Its memory goes back, resp. a part's whole has one part less. 0 or a negative errno. */
static int buffer_give(struct buffer *b)
{
	struct buffer *parent = b->parent;
	struct pool *pool = b->pool;
	int err = 0;

	b->pool = NULL;
	if (parent) {
		b->parent = NULL;
		parent->exports--;
		Py_DECREF((PyObject *)parent);
	} else {
		err = give(pool, b->ptr, b->named);
	}
	if (err) {
		PyObject *type, *value, *traceback;

		PyErr_Fetch(&type, &value, &traceback);
		fail(pool, err);
		PyErr_WriteUnraisable(NULL);
		PyErr_Restore(type, value, traceback);
	}
	Py_DECREF((PyObject *)pool);
	return err;
}

void buffer_dealloc(PyObject *self)
{
	struct buffer *b = (struct buffer *)self;
	PyTypeObject *type = Py_TYPE(self);

	PyObject_GC_UnTrack(self);
	if (b->weakrefs)
		PyObject_ClearWeakRefs(self);
	if (b->pool)
		buffer_give(b);
	PyObject_GC_Del(self);
	Py_DECREF(type);
}

/* Whoever closes a circle through it is the one to open it: it keeps its memory to the end. */
static int buffer_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct buffer *b = (struct buffer *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT((PyObject *)b->pool);
	Py_VISIT((PyObject *)b->parent);
	return 0;
}

bool buffer_usable(const struct buffer *b)
{
	if (!b->pool)
		PyErr_SetString(PyExc_ValueError, "the buffer is released");
	return b->pool;
}

static int buffer_get(PyObject *self, Py_buffer *view, int flags)
{
	struct buffer *b = (struct buffer *)self;

	view->obj = NULL;
	if (!buffer_usable(b))
		return -1;
	if (b->pool->handles) {
		PyErr_SetString(PyExc_BufferError,
				"a buffer of a pool of handles has no memory to view");
		return -1;
	}
	if (PyBuffer_FillInfo(view, self, b->ptr, (Py_ssize_t)b->bytes, 0, flags))
		return -1;
	b->exports++;
	return 0;
}

static void buffer_put(PyObject *self, Py_buffer *view)
{
	(void)view;
	((struct buffer *)self)->exports--;
}

/* Whether nothing keeps its memory; raises what does. */
static bool unkept(const struct buffer *b)
{
	if (b->exports)
		PyErr_Format(PyExc_BufferError,
			     "the buffer has %zd views or parts that keep its memory", b->exports);
	return !b->exports;
}

/* What release() does; raises what is in the way. */
PyObject *buffer_release(struct buffer *b)
{
	if (!unkept(b))
		return NULL;
	buffer_give(b);
	Py_RETURN_NONE;
}

static PyObject *py_buffer_release(PyObject *self, PyObject *none)
{
	struct buffer *b = (struct buffer *)self;

	(void)none;
	if (!b->pool)
		Py_RETURN_NONE;
	return buffer_release(b);
}

/* Whether it can be given back; raises what is in the way. */
static bool givable(struct buffer *b)
{
	if (!buffer_usable(b))
		return false;
	if (b->parent) {
		PyErr_SetString(PyExc_ValueError, "a part is not given back: its whole is");
		return false;
	}
	return unkept(b);
}

/*
 * _give_with(function): gives the buffer back by function(pool's address, its own), unless
 * that raises something. Meanwhile other threads find it released, to view it or to release it.
 */
static PyObject *py_buffer_give_with(PyObject *self, PyObject *function)
{
	struct buffer *b = (struct buffer *)self;
	struct pool *pool = b->pool;
	PyObject *done;

	if (!givable(b))
		return NULL;
	b->pool = NULL;
	pool->calls++;
	done = PyObject_CallFunction(function, "NN", PyLong_FromVoidPtr(pool->pool),
				     PyLong_FromVoidPtr(b->ptr));
	pool->calls--;
	if (!done) {
		b->pool = pool;
		return NULL;
	}
	Py_DECREF(done);
	Py_DECREF((PyObject *)pool);
	Py_RETURN_NONE;
}

/*
 * _give_on(function, streams, devices): as _give_with, by binpool_free_on_cuda_streams, which is at
 * this address, with two lists as long as each other, the second or None. What it returned; the
 * buffer is given back unless that is negative.
 */
static PyObject *py_buffer_give_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
	int (*function)(struct binpool *, void *, void *const *, const int *, size_t);
	struct buffer *b = (struct buffer *)self;
	struct pool *pool = b->pool;
	PyThreadState *thread;
	Py_ssize_t n;
	void **streams;
	int *devices, err;

	if (nargs != 3)
		return PyErr_Format(PyExc_TypeError, "3 arguments");
	n = PyList_Size(args[1]);
	if (n < 0 || !givable(b))
		return NULL;
	streams = PyMem_Malloc((size_t)n * (sizeof(*streams) + sizeof(*devices)));
	if (!streams)
		return PyErr_NoMemory();
	devices = args[2] == Py_None ? NULL : (int *)(streams + n);
	function = (__typeof__(function))PyLong_AsVoidPtr(args[0]);
	for (Py_ssize_t i = 0; i < n; i++) {
		streams[i] = PyLong_AsVoidPtr(PyList_GetItem(args[1], i));
		if (devices)
			devices[i] = (int)PyLong_AsLong(PyList_GetItem(args[2], i));
	}
	if (PyErr_Occurred()) {
		PyMem_Free(streams);
		return NULL;
	}
	b->pool = NULL;
	pool->calls++;
	thread = PyEval_SaveThread();
	err = function(pool->pool, b->ptr, streams, devices, (size_t)n);
	PyEval_RestoreThread(thread);
	pool->calls--;
	PyMem_Free(streams);
	if (err < 0)
		b->pool = pool;
	else
		Py_DECREF((PyObject *)pool);
	return PyLong_FromLong(err);
}

static PyObject *py_buffer_enter(PyObject *self, PyObject *none)
{
	(void)none;
	if (!buffer_usable((struct buffer *)self))
		return NULL;
	Py_INCREF(self);
	return self;
}

static PyObject *py_buffer_exit(PyObject *self, PyObject *args)
{
	(void)args;
	return py_buffer_release(self, NULL);
}

static PyObject *py_buffer_sub(PyObject *self, PyObject *args)
{
	struct buffer *b = (struct buffer *)self, *part;
	PyObject *from, *length;
	Py_ssize_t offset, size;

	if (!PyArg_ParseTuple(args, "OO:sub", &from, &length))
		return NULL;
	/* What is out of bounds for C is so for the buffer. */
	offset = PyNumber_AsSsize_t(from, NULL);
	if (offset == -1 && PyErr_Occurred())
		return NULL;
	size = PyNumber_AsSsize_t(length, NULL);
	if ((size == -1 && PyErr_Occurred()) || !buffer_usable(b))
		return NULL;
	if (offset < 0 || size < 0 || (size_t)offset > b->bytes ||
	    (size_t)size > b->bytes - (size_t)offset)
		return PyErr_Format(PyExc_ValueError,
				    "%zd bytes at %zd are not within a buffer of %zu", size, offset,
				    b->bytes);
	if (b->pool->handles) {
		PyErr_SetString(PyExc_ValueError, "a buffer of a pool of handles has no parts");
		return NULL;
	}
	part = buffer_new(b->pool, b, b->ptr + offset, false, (size_t)size);
	if (part) {
		Py_INCREF(self);
		b->exports++;
	}
	return (PyObject *)part;
}

static PyObject *py_buffer_ptr(PyObject *self, void *closure)
{
	struct buffer *b = (struct buffer *)self;

	(void)closure;
	return buffer_usable(b) ? PyLong_FromVoidPtr(b->ptr) : NULL;
}

static PyObject *py_buffer_size(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromSize_t(((struct buffer *)self)->bytes);
}

static PyObject *py_buffer_released(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(!((struct buffer *)self)->pool);
}

/* @object, or None where there is none. */
static PyObject *or_none(void *object)
{
	PyObject *o = object ? object : Py_None;

	Py_INCREF(o);
	return o;
}

static PyObject *py_buffer_pool(PyObject *self, void *closure)
{
	(void)closure;
	return or_none(((struct buffer *)self)->pool);
}

static PyObject *py_buffer_parent(PyObject *self, void *closure)
{
	(void)closure;
	return or_none(((struct buffer *)self)->parent);
}

static PyMethodDef buffer_methods[] = {
	{"release", py_buffer_release, METH_NOARGS,
	 "release()\n--\n\nGives the memory back to the pool; a second time does nothing.\n\n"
	 "BufferError: views or parts keep it. Dropping the last reference does the same."},
	{"sub", py_buffer_sub, METH_VARARGS,
	 "sub(offset, size, /)\n--\n\nA buffer that is a part of this one, and keeps it.\n\n"
	 "In bytes. ValueError: not within this one."},
	{"_give_with", py_buffer_give_with, METH_O, NULL},
	{"_give_on", (PyCFunction)(void (*)(void))py_buffer_give_on, METH_FASTCALL, NULL},
	{"__enter__", py_buffer_enter, METH_NOARGS, NULL},
	{"__exit__", py_buffer_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef buffer_members[] = {
	{"ptr", py_buffer_ptr, NULL, "Address, an int.", NULL},
	{"size", py_buffer_size, NULL, "Bytes as asked for.", NULL},
	{"nbytes", py_buffer_size, NULL, "As size.", NULL},
	{"released", py_buffer_released, NULL, "Whether the memory has gone back.", NULL},
	{"pool", py_buffer_pool, NULL, "The MemoryPool; None once released.", NULL},
	{"parent", py_buffer_parent, NULL, "What this is a part of, or None.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef buffer_offsets[] = {
	{"__weaklistoffset__", T_PYSSIZET, offsetof(struct buffer, weakrefs), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot buffer_slots[] = {
	{Py_tp_doc, "Memory of a MemoryPool, with the buffer protocol.\n\n"
		    "memoryview, numpy and whoever else takes buffers can use it as writable\n"
		    "bytes; what they make of it keeps the memory. Made by a pool only."},
	{Py_tp_dealloc, buffer_dealloc},
	{Py_tp_traverse, buffer_traverse},
	{Py_tp_methods, buffer_methods},
	{Py_tp_getset, buffer_members},
	{Py_tp_members, buffer_offsets},
	{Py_bf_getbuffer, buffer_get},
	{Py_bf_releasebuffer, buffer_put},
	{0, NULL},
};

PyType_Spec buffer_spec = {
	.name = "binpool.PooledBuffer",
	.basicsize = sizeof(struct buffer),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = buffer_slots,
};
