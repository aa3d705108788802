// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools: allocating and freeing, destroying. Owns struct pool.
 */
#include "native.h"

void *fail(struct pool *self, int err)
{
	PyObject *exception = PyObject_CallFunction(self->fail, "i", err);

	if (exception) {
		PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
		Py_DECREF(exception);
	}
	return NULL;
}

static struct binpool *usable(struct pool *self)
{
	if (self->pool && !self->closing)
		return self->pool;
	PyErr_SetString(PyExc_ValueError,
			self->pool ? "the pool is being destroyed" : "the pool is destroyed");
	return NULL;
}

/* ---- Freeing ------------------------------------------------------------ */

/* As binpool_free and binpool_handle_free, for any length of time. */
static int free_slowly(struct pool *self, char *ptr, bool named)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	PyObject *type, *value, *traceback;
	PyThreadState *thread;
	int err;

	if (named)
		buf.handle = (uint64_t)(uintptr_t)ptr;
	else
		buf.ptr = ptr;
	/* A callback written in Python is not to find an exception that is under way. */
	PyErr_Fetch(&type, &value, &traceback);
	self->calls++;
	thread = PyEval_SaveThread();
	err = self->handles ? lib.handle_free(self->pool, &buf) : lib.free(self->pool, ptr);
	PyEval_RestoreThread(thread);
	self->calls--;
	PyErr_Restore(type, value, traceback);
	return err;
}

static int free_later(struct pool *self, char *ptr, bool named)
{
	struct late *late = malloc(sizeof(*late));

	if (!late)
		return -ENOMEM;
	*late = (struct late){self->late, ptr, named};
	self->late = late;
	return 0;
}

/* Frees what had to wait, unless it still has to. */
static void free_late(struct pool *self)
{
	struct late *late;

	while ((late = self->late)) {
		self->late = late->next;
		if (free_slowly(self, late->ptr, late->named) == -EDEADLK) {
			late->next = self->late;
			self->late = late;
			return;
		}
		free(late);
	}
}

/*
 * What ends by itself may end anywhere, as between an error and the exception that tells
 * it: it leaves the thread's last error as it was.
 */
struct sentence {
	char text[1024];
};

static void sentence_keep(struct sentence *s)
{
	snprintf(s->text, sizeof(s->text), "%s", lib.path ? lib.last_error() : "");
}

static void sentence_restore(const struct sentence *s)
{
	if (lib.path && strcmp(s->text, lib.last_error()))
		lib.set_last_error(s->text);
}

int give(struct pool *self, char *ptr, bool named)
{
	struct sentence before;
	int err = self->handles ? -EAGAIN : lib.free_cached(self->pool, ptr);

	if (err == -EAGAIN) {
		sentence_keep(&before);
		err = free_slowly(self, ptr, named);
		if (err == -EDEADLK)
			err = free_later(self, ptr, named);
		else if (self->late)
			free_late(self);
		if (!err)
			sentence_restore(&before);
	}
	return err;
}

/* ---- Allocating --------------------------------------------------------- */

bool to_size(PyObject *number, size_t *out)
{
	PyObject *index = PyNumber_Index(number), *zero;

	if (!index)
		return false;
	*out = PyLong_AsSize_t(index);
	if (*out == (size_t)-1 && PyErr_Occurred()) {
		PyErr_Clear();
		zero = PyLong_FromLong(0);
		if (zero && PyObject_RichCompareBool(index, zero, Py_LT) == 1)
			PyErr_Format(PyExc_ValueError, "%S is no number of bytes", index);
		else
			PyErr_Format(PyExc_MemoryError, "%S bytes: no address space is that large",
				     index);
		Py_XDECREF(zero);
		Py_DECREF(index);
		return false;
	}
	Py_DECREF(index);
	return true;
}

static PyObject *allocate(struct pool *self, const struct binpool_alloc_opts *opts)
{
	const bool plain = !opts->alignment && !opts->flags && !opts->tag && !self->handles;
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool = usable(self);
	PyThreadState *thread;
	PyObject *b;
	char *ptr;
	int err;

	if (!pool)
		return NULL;
	if (self->handles && (opts->alignment || opts->flags & BINPOOL_BUF_ZEROED)) {
		PyErr_SetString(PyExc_ValueError, "handles are not aligned, nor zeroed");
		return NULL;
	}
	ptr = plain ? lib.alloc_cached(pool, opts->bytes) : NULL;
	if (!ptr) {
		self->calls++;
		thread = PyEval_SaveThread();
		if (plain) {
			ptr = lib.alloc(pool, opts->bytes);
			err = ptr ? 0 : -errno;
		} else {
			err = lib.alloc_ex(pool, opts, &buf);
			ptr = buf.handle ? (char *)(uintptr_t)buf.handle : buf.ptr;
		}
		PyEval_RestoreThread(thread);
		self->calls--;
		if (err)
			return fail(self, err);
		if (self->late)
			free_late(self);
	}
	b = (PyObject *)buffer_new(self, NULL, ptr, buf.handle, opts->bytes);
	if (!b)
		give(self, ptr, buf.handle);
	return b;
}

static bool to_ms(PyObject *time, uint32_t *ms)
{
	const double longest = (double)UINT32_MAX;
	double seconds = PyFloat_AsDouble(time);
	PyObject *zero;

	/* An int that no double can be, of either sign. */
	if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
		PyErr_Clear();
		zero = PyLong_FromLong(0);
		seconds = zero && PyObject_RichCompareBool(time, zero, Py_GT) == 1 ? longest : -1;
		Py_XDECREF(zero);
	}
	if (PyErr_Occurred())
		return false;
	if (!(seconds >= 0)) {
		PyErr_SetString(PyExc_ValueError, "a time to wait is not negative");
		return false;
	}
	*ms = seconds * 1000 < longest ? (uint32_t)(seconds * 1000) : UINT32_MAX;
	return true;
}

/* NULL, raised: it is no tag. */
static const char *to_tag(PyObject *text)
{
	const char *tag;
	Py_ssize_t size;

	if (!PyUnicode_Check(text))
		return PyErr_Format(PyExc_TypeError, "tag %R is no str", text);
	tag = PyUnicode_AsUTF8AndSize(text, &size);
	if (tag && strlen(tag) != (size_t)size)
		return PyErr_Format(PyExc_ValueError, "tag %R has a null character", text);
	return tag;
}

/* What Python says of a request, by name; NULL or None: nothing. */
struct wishes {
	PyObject *nbytes, *alignment, *zeroed, *tag, *timeout;
};

static PyObject *allocate_wishes(struct pool *self, const struct wishes *w)
{
	struct binpool_alloc_opts opts = {.size = sizeof(opts)};
	size_t size, align = 0;
	int zero = 0;

	if (!w->nbytes) {
		PyErr_SetString(PyExc_TypeError, "nbytes is missing");
		return NULL;
	}
	if (!to_size(w->nbytes, &size))
		return NULL;
	if (w->alignment && w->alignment != Py_None) {
		if (!to_size(w->alignment, &align))
			return NULL;
		if (!align) {
			PyErr_SetString(PyExc_ValueError, "alignment 0 is no power of two");
			return NULL;
		}
	}
	if (w->zeroed)
		zero = PyObject_IsTrue(w->zeroed);
	if (zero < 0)
		return NULL;
	if (w->tag && w->tag != Py_None) {
		opts.tag = to_tag(w->tag);
		if (!opts.tag)
			return NULL;
	}
	if (w->timeout && w->timeout != Py_None) {
		if (!to_ms(w->timeout, &opts.wait_ms))
			return NULL;
		opts.flags = BINPOOL_BUF_WAIT;
	}
	opts.bytes = size;
	opts.alignment = align;
	opts.flags |= zero ? BINPOOL_BUF_ZEROED : 0;
	return allocate(self, &opts);
}

static PyObject *allocate_named(PyObject *self, PyObject *const *args, size_t nargs,
				PyObject *names)
{
	static const char *const known[] = {"nbytes", "alignment", "zeroed", "tag", "timeout"};
	const size_t n = sizeof(known) / sizeof(*known);
	PyObject *given[sizeof(known) / sizeof(*known)] = {NULL};

	if (nargs > 2) {
		PyErr_SetString(PyExc_TypeError,
				"nbytes and alignment are all that goes without a name");
		return NULL;
	}
	for (size_t i = 0; i < nargs; i++)
		given[i] = args[i];
	for (Py_ssize_t i = 0; names && i < PyTuple_Size(names); i++) {
		PyObject *name = PyTuple_GetItem(names, i);
		size_t k = 0;

		while (k < n && PyUnicode_CompareWithASCIIString(name, known[k]))
			k++;
		if (k == n)
			return PyErr_Format(PyExc_TypeError, "there is no argument %R", name);
		if (given[k])
			return PyErr_Format(PyExc_TypeError, "%R is given twice", name);
		given[k] = args[nargs + (size_t)i];
	}
	return allocate_wishes((struct pool *)self,
			       &(struct wishes){given[0], given[1], given[2], given[3], given[4]});
}

static PyObject *pool_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
				 PyObject *names)
{
	struct binpool_alloc_opts opts = {.size = sizeof(opts)};
	size_t nargs = nargsf & NARGS_MASK;

	if (nargs != 1 || names)
		return allocate_named(self, args, nargs, names);
	opts.bytes = PyLong_Check(args[0]) ? PyLong_AsSize_t(args[0]) : SIZE_MAX;
	if (opts.bytes == SIZE_MAX) {
		PyErr_Clear();
		return allocate_wishes((struct pool *)self, &(struct wishes){args[0]});
	}
	return allocate((struct pool *)self, &opts);
}

static PyObject *py_pool_allocate(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				  PyObject *names)
{
	return pool_vectorcall(self, args, (size_t)nargs, names);
}

/* What subclasses are called with before Python 3.12. */
static PyObject *pool_call(PyObject *self, PyObject *args, PyObject *names)
{
	static char *known[] = {"nbytes", "alignment", "zeroed", "tag", "timeout", NULL};
	struct wishes w = {NULL};

	if (!PyArg_ParseTupleAndKeywords(args, names, "O|O$OOO", known, &w.nbytes, &w.alignment,
					 &w.zeroed, &w.tag, &w.timeout))
		return NULL;
	return allocate_wishes((struct pool *)self, &w);
}

static PyObject *py_pool_allocate_aligned(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
	if (nargs != 2) {
		PyErr_SetString(PyExc_TypeError, "allocate_aligned takes a size and an alignment");
		return NULL;
	}
	return allocate_wishes((struct pool *)self, &(struct wishes){args[0], args[1]});
}

static PyObject *py_pool_free(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
	struct pool *pool = (struct pool *)self;
	struct buffer *b;
	size_t size;

	if (nargs < 1 || nargs > 2) {
		PyErr_SetString(PyExc_TypeError, "free takes a buffer and its size");
		return NULL;
	}
	if (!pool->buffer_type || Py_TYPE(args[0]) != pool->buffer_type)
		return PyErr_Format(PyExc_TypeError, "%R is no buffer of a pool", args[0]);
	b = (struct buffer *)args[0];
	if (!buffer_usable(b))
		return NULL;
	if (b->pool != pool || b->parent)
		return PyErr_Format(PyExc_ValueError, "%R is %s", args[0],
				    b->parent ? "a part of a buffer" : "another pool's");
	if (nargs == 2 && args[1] != Py_None) {
		if (!to_size(args[1], &size))
			return NULL;
		if (size != b->bytes)
			return PyErr_Format(PyExc_ValueError,
					    "free with size %zu, but %zu were asked for", size,
					    b->bytes);
	}
	return buffer_release(b);
}

/* ---- A pool's life ------------------------------------------------------ */

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct pool *self = (struct pool *)alloc(type, 0);

	(void)args;
	(void)names;
	if (self)
		self->call = pool_vectorcall;
	return (PyObject *)self;
}

static PyObject *py_pool_adopt(PyObject *self, PyObject *args)
{
	struct pool *pool = (struct pool *)self;
	PyObject *address, *type, *error, *keep;
	struct binpool *c_pool;
	int handles;

	if (!PyArg_ParseTuple(args, "OOOOp:_adopt", &address, &type, &error, &keep, &handles))
		return NULL;
	c_pool = PyLong_AsVoidPtr(address);
	if (!c_pool || pool->pool || !lib.path || !PyType_Check(type) ||
	    PyType_GetSlot((PyTypeObject *)type, Py_tp_dealloc) != (void *)buffer_dealloc) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "_adopt is for the package itself");
		return NULL;
	}
	Py_INCREF(type);
	Py_INCREF(error);
	Py_INCREF(keep);
	pool->buffer_type = (PyTypeObject *)type;
	pool->fail = error;
	pool->keep = keep;
	pool->handles = handles;
	pool->pool = c_pool;
	orphans_end();
	Py_RETURN_NONE;
}

/* The C pool, for a call through ctypes that ends with _leave(). */
static PyObject *py_pool_enter(PyObject *self, PyObject *none)
{
	struct pool *pool = (struct pool *)self;

	(void)none;
	if (!usable(pool))
		return NULL;
	if (pool->late)
		free_late(pool);
	pool->calls++;
	return PyLong_FromVoidPtr(pool->pool);
}

static PyObject *py_pool_leave(PyObject *self, PyObject *none)
{
	struct pool *pool = (struct pool *)self;

	(void)none;
	pool->calls--;
	Py_RETURN_NONE;
}

static int pool_destroy(struct pool *self, uint32_t ms)
{
	PyThreadState *thread;
	int err;

	free_late(self);
	self->closing = true;
	thread = PyEval_SaveThread();
	err = lib.destroy_wait(self->pool, ms);
	PyEval_RestoreThread(thread);
	self->closing = false;
	if (!err) {
		self->pool = NULL;
		Py_CLEAR(self->keep);
	}
	return err;
}

static PyObject *py_pool_destroy(PyObject *self, PyObject *args)
{
	struct pool *pool = (struct pool *)self;
	PyObject *timeout = NULL;
	uint32_t ms = 0;
	int err;

	if (!PyArg_ParseTuple(args, "|O:destroy", &timeout) || (timeout && !to_ms(timeout, &ms)))
		return NULL;
	if (!pool->pool)
		Py_RETURN_NONE;
	if (pool->calls || pool->closing) {
		PyErr_SetString(PyExc_BufferError, "another thread is in a call on the pool");
		return NULL;
	}
	err = pool_destroy(pool, ms);
	if (err)
		return fail(pool, err);
	Py_RETURN_NONE;
}

static int pool_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct pool *pool = (struct pool *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(pool->dict);
	Py_VISIT((PyObject *)pool->buffer_type);
	Py_VISIT(pool->fail);
	return 0;
}

static int pool_clear(PyObject *self)
{
	Py_CLEAR(((struct pool *)self)->dict);
	return 0;
}

/* The garbage collector is about to take apart what may hold this pool. */
static void pool_finalize(PyObject *self)
{
	PyObject *type, *value, *traceback, *done;
	struct sentence before;

	sentence_keep(&before);
	PyErr_Fetch(&type, &value, &traceback);
	if (usable((struct pool *)self)) {
		done = PyObject_CallMethod(self, "_before_collection", NULL);
		if (!done)
			PyErr_WriteUnraisable(self);
		Py_XDECREF(done);
	} else {
		PyErr_Clear();
	}
	PyErr_Restore(type, value, traceback);
	sentence_restore(&before);
}

static void pool_dealloc(PyObject *self)
{
	struct pool *pool = (struct pool *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc free_self = (freefunc)PyType_GetSlot(type, Py_tp_free);
	PyObject *etype, *value, *traceback;
	struct sentence before;

	PyObject_GC_UnTrack(self);
	sentence_keep(&before);
	PyErr_Fetch(&etype, &value, &traceback);
	if (pool->weakrefs)
		PyObject_ClearWeakRefs(self);
	/* No buffer is left, or it would have kept the pool; but some may wait for fences. */
	if (pool->pool && pool_destroy(pool, 0) == -EBUSY)
		orphan_add(pool);
	orphans_end();
	Py_CLEAR(pool->keep);
	Py_CLEAR(pool->dict);
	Py_CLEAR(pool->fail);
	Py_XDECREF((PyObject *)pool->buffer_type);
	PyErr_Restore(etype, value, traceback);
	sentence_restore(&before);
	free_self(self);
	Py_DECREF(type);
}

static PyMethodDef pool_methods[] = {
	{"allocate", (PyCFunction)(void (*)(void))py_pool_allocate, METH_FASTCALL | METH_KEYWORDS,
	 "allocate(nbytes, alignment=None, *, zeroed=False, tag=None, timeout=None)\n--\n\n"
	 "A PooledBuffer of at least nbytes bytes; the same as calling the pool.\n\n"
	 "nbytes may be 0. alignment: a power of two up to 1 GiB. zeroed: all bytes are 0.\n"
	 "tag: what leaks() calls it; a tagged buffer takes the pool's lock to be freed.\n"
	 "timeout: how many seconds to wait for room, TimeoutError after that; None: no waiting.\n"
	 "MemoryError (its errno says why), ValueError; in a forked child OSError."},
	{"allocate_aligned", (PyCFunction)(void (*)(void))py_pool_allocate_aligned, METH_FASTCALL,
	 "allocate_aligned(size, alignment, /)\n--\n\nAs allocate."},
	{"free", (PyCFunction)(void (*)(void))py_pool_free, METH_FASTCALL,
	 "free(buf, size=None, /)\n--\n\nGives a buffer back; size, if given, is checked.\n\n"
	 "ValueError: another pool's, released, or not of that size; BufferError: views or\n"
	 "parts keep it. Dropping the last reference to a buffer does the same."},
	{"destroy", py_pool_destroy, METH_VARARGS,
	 "destroy(timeout=0, /)\n--\n\nGives everything back and ends the pool.\n\n"
	 "Waits up to timeout seconds for buffers that other threads have, and for fences.\n"
	 "BufferError: buffers live; nothing changed. A second time does nothing."},
	{"_adopt", py_pool_adopt, METH_VARARGS, NULL},
	{"_enter", py_pool_enter, METH_NOARGS, NULL},
	{"_leave", py_pool_leave, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef pool_offsets[] = {
	{"__vectorcalloffset__", T_PYSSIZET, offsetof(struct pool, call), READONLY, NULL},
	{"__dictoffset__", T_PYSSIZET, offsetof(struct pool, dict), READONLY, NULL},
	{"__weaklistoffset__", T_PYSSIZET, offsetof(struct pool, weakrefs), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef pool_members[] = {
	{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pool_slots[] = {
	{Py_tp_new, pool_new},		 {Py_tp_dealloc, pool_dealloc},
	{Py_tp_traverse, pool_traverse}, {Py_tp_clear, pool_clear},
	{Py_tp_finalize, pool_finalize}, {Py_tp_call, pool_call},
	{Py_tp_methods, pool_methods},	 {Py_tp_members, pool_offsets},
	{Py_tp_getset, pool_members},	 {0, NULL},
};

PyType_Spec pool_spec = {
	.name = "binpool.MemoryPool",
	.basicsize = sizeof(struct pool),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_HAVE_VECTORCALL,
	.slots = pool_slots,
};
