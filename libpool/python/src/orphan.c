// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools whose objects are gone before their last fence, with what their callbacks need:
 * they are destroyed when another pool begins or ends, if they can be by then.
 */
#include "native.h"

static struct orphan {
	struct orphan *next;
	struct binpool *pool;
	PyObject *keep, *dict;
	PyInterpreterState *of;
} * orphans;

void orphan_add(struct pool *self)
{
	struct orphan *o = malloc(sizeof(*o));

	Py_XINCREF(self->keep);
	Py_XINCREF(self->dict);
	if (!o)
		return;
	*o = (struct orphan){orphans, self->pool, self->keep, self->dict, PyInterpreterState_Get()};
	orphans = o;
}

void orphans_end(void)
{
	struct orphan *o = orphans, *next;
	PyThreadState *thread;
	int err;

	/* Others find none meanwhile. */
	orphans = NULL;
	for (; o; o = next) {
		next = o->next;
		err = -EBUSY;
		if (o->of == PyInterpreterState_Get()) {
			thread = PyEval_SaveThread();
			err = lib.destroy_wait(o->pool, 0);
			PyEval_RestoreThread(thread);
		}
		if (err) {
			o->next = orphans;
			orphans = o;
		} else {
			Py_XDECREF(o->keep);
			Py_XDECREF(o->dict);
			free(o);
		}
	}
}
