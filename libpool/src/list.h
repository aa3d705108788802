/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Lists linked both ways through two members of what is in them, here @prev and @next: the
 * first has no prev, the last no next. Who owns a list says which lock it has.
 */
#ifndef BINPOOL_LIST_H
#define BINPOOL_LIST_H

/* Puts @item before all others. */
#define LIST_PUSH(first, item, prev, next)                                                         \
	do {                                                                                       \
		(item)->prev = NULL;                                                               \
		(item)->next = (first);                                                            \
		if ((item)->next)                                                                  \
			(item)->next->prev = (item);                                               \
		(first) = (item);                                                                  \
	} while (0)

#define LIST_REMOVE(first, item, prev, next)                                                       \
	do {                                                                                       \
		*((item)->prev ? &(item)->prev->next : &(first)) = (item)->next;                   \
		if ((item)->next)                                                                  \
			(item)->next->prev = (item)->prev;                                         \
	} while (0)

/* The same of a list whose last is known, too; through prev and next. */
#define LIST_APPEND(first, last, item)                                                             \
	do {                                                                                       \
		(item)->next = NULL;                                                               \
		(item)->prev = (last);                                                             \
		*((item)->prev ? &(item)->prev->next : &(first)) = (item);                         \
		(last) = (item);                                                                   \
	} while (0)

#define LIST_UNLINK(first, last, item)                                                             \
	do {                                                                                       \
		*((item)->prev ? &(item)->prev->next : &(first)) = (item)->next;                   \
		*((item)->next ? &(item)->next->prev : &(last)) = (item)->prev;                    \
	} while (0)

#endif /* BINPOOL_LIST_H */
