// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The module: loads the library, makes the types. Owns what is of the process.
 */
#include <dlfcn.h>

#include "native.h"

struct library lib;

static PyObject *py_load(PyObject *module, PyObject *args)
{
	const struct {
		const char *name;
		void **at;
	} wanted[] = {
		{"binpool_alloc", (void **)&lib.alloc},
		{"binpool_alloc_cached", (void **)&lib.alloc_cached},
		{"binpool_alloc_ex", (void **)&lib.alloc_ex},
		{"binpool_free", (void **)&lib.free},
		{"binpool_free_cached", (void **)&lib.free_cached},
		{"binpool_handle_free", (void **)&lib.handle_free},
		{"binpool_destroy_wait", (void **)&lib.destroy_wait},
		{"binpool_last_error", (void **)&lib.last_error},
		{"binpool_set_last_error", (void **)&lib.set_last_error},
	};
	const char *path;
	void *handle;

	(void)module;
	if (!PyArg_ParseTuple(args, "s:load", &path))
		return NULL;
	/* Another interpreter's is this one's too. */
	if (lib.path)
		return PyUnicode_DecodeFSDefault(lib.path);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return PyErr_Format(PyExc_ImportError, "%s", dlerror());
	for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
		*wanted[i].at = dlsym(handle, wanted[i].name);
		if (!*wanted[i].at)
			return PyErr_Format(PyExc_ImportError, "%s has no %s", path,
					    wanted[i].name);
	}
	lib.path = strdup(path);
	return lib.path ? PyUnicode_DecodeFSDefault(lib.path) : PyErr_NoMemory();
}

static PyMethodDef module_methods[] = {
	{"load", py_load, METH_VARARGS, "load(path): the library that is used; loads it once."},
	{NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
	static PyType_Spec *const specs[] = {&pool_spec, &buffer_spec};
	static const char *const names[] = {"MemoryPool", "PooledBuffer"};

	for (size_t i = 0; i < 2; i++) {
		PyObject *type = PyType_FromSpec(specs[i]);

		if (!type || PyModule_AddObjectRef(module, names[i], type)) {
			Py_XDECREF(type);
			return -1;
		}
		Py_DECREF(type);
	}
	return 0;
}

static PyModuleDef_Slot module_slots[] = {
	{Py_mod_exec, module_exec},
	{0, NULL},
};

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT,	     .m_name = "binpool._native", .m_size = 0,
	.m_methods = module_methods, .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
	return PyModuleDef_Init(&module_def);
}
