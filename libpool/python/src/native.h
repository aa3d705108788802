/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The fast backend of the Python package: a pool's allocating and freeing, and
 * buffers with the buffer protocol. Everything else is Python, over ctypes.
 *
 * Owns: a pool object owns its struct binpool, and destroys it with itself; a
 * buffer owns its memory and keeps its pool; a view or a part of a buffer keeps
 * the buffer. So whatever order things are dropped in, memory goes back before
 * the pool that it is from, and never while somebody can still reach it.
 *
 * Lock: the interpreter's. It is held while only the thread's own cache is
 * asked, and let go for whatever may take longer or call back. What is counted
 * in `calls` is such a call; a pool is not destroyed meanwhile.
 */
#ifndef BINPOOL_NATIVE_H
#define BINPOOL_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#include <binpool.h>

/* What the stable ABI has under these names from 3.12 on is the same before. */
#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#endif
#define NARGS_MASK (~((size_t)1 << (8 * sizeof(size_t) - 1)))

typedef PyObject *(*vectorcall_fn)(PyObject *self, PyObject *const *args, size_t nargsf,
				   PyObject *names);

/* The library, once for all interpreters of the process; never unloaded. */
struct library {
	char *path;
	__typeof__(&binpool_alloc) alloc;
	__typeof__(&binpool_alloc_cached) alloc_cached;
	__typeof__(&binpool_alloc_ex) alloc_ex;
	__typeof__(&binpool_free) free;
	__typeof__(&binpool_free_cached) free_cached;
	__typeof__(&binpool_handle_free) handle_free;
	__typeof__(&binpool_destroy_wait) destroy_wait;
	__typeof__(&binpool_last_error) last_error;
	__typeof__(&binpool_set_last_error) set_last_error;
};

extern struct library lib;

/* A buffer that could not be freed where its object ended: in a callback of its pool. */
struct late {
	struct late *next;
	char *ptr;
	bool named;
};

struct pool {
	PyObject_HEAD vectorcall_fn call;
	PyObject *dict, *weakrefs;
	struct binpool *pool; /* NULL: none yet, or destroyed */
	PyTypeObject *buffer_type;
	/*
	 * What must live until the pool is destroyed: its callbacks. The garbage collector is
	 * not told of them: it might take them first. They hold nothing it should know of.
	 */
	PyObject *keep;
	PyObject *fail;	  /* from a negative errno to an exception */
	Py_ssize_t calls; /* without the interpreter's lock */
	bool closing;
	bool handles; /* a pool of handles */
	struct late *late;
};

struct buffer {
	PyObject_HEAD struct pool *pool; /* NULL: released */
	struct buffer *parent;		 /* that this is a part of; NULL: none */
	PyObject *weakrefs;
	char *ptr;
	bool named; /* ptr is a handle: to be followed nowhere */
	size_t bytes;
	Py_ssize_t exports; /* views and parts */
};

/* pool.c */
extern PyType_Spec pool_spec;
/* Raises what @err, a negative errno of the library's, is in Python. */
void *fail(struct pool *self, int err);
int give(struct pool *self, char *ptr, bool named);
bool to_size(PyObject *number, size_t *out);

/* orphan.c */
void orphan_add(struct pool *self);
void orphans_end(void);

/* buffer.c */
extern PyType_Spec buffer_spec;
struct buffer *buffer_new(struct pool *pool, struct buffer *parent, char *ptr, bool named,
			  size_t bytes);
bool buffer_usable(const struct buffer *b);
PyObject *buffer_release(struct buffer *b);
void buffer_dealloc(PyObject *self);

#endif /* BINPOOL_NATIVE_H */
