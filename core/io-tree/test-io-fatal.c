/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every fatal branch, reached in a child process by breaking the tree on purpose. The child has a
 * `fatal` function that prints the message and then checks that the tree is dead; the parent reads
 * the message, which must name file, line, function, operation, record and range.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "io-tree/io-tree-internal.h"

#define DIRTY CPC_IO_DELALLOC

static int nr_fatal;

static void on_fatal(void *arg, const char *message)
{
	nr_fatal++;
	printf("%s\n", message);
}

/* A tree with records [10,20) [30,40) [50,60), all DELALLOC, and spares. */
static void build(struct cpc_io_tree *tree, cpc_io_fatal_fn fatal)
{
	struct cpc_io_tree_config config = {.fatal = fatal};

	cpc_io_tree_init(tree, &config);
	cpc_io_tree_set(tree, 10, 10, DIRTY, NULL, NULL);
	cpc_io_tree_set(tree, 30, 10, DIRTY, NULL, NULL);
	cpc_io_tree_set(tree, 50, 10, DIRTY, NULL, NULL);
}

static struct cpc_io_state *second(struct cpc_io_tree *tree)
{
	return tree->first->next;
}

static int failing_add(struct cpc_changeset *cs, uint64_t start, uint64_t len, enum cpc_io_bits set,
		       enum cpc_io_bits cleared)
{
	return -ENOMEM;
}

static int changeset_fails(struct cpc_io_tree *tree)
{
	struct cpc_changeset cs = {.add = failing_add};

	return cpc_io_tree_clear(tree, 35, 10, DIRTY, NULL, &cs);
}

static int record_outside_the_tree_met(struct cpc_io_tree *tree)
{
	second(tree)->flags &= ~CPC_IO_REC_IN_TREE;
	return cpc_io_tree_clear(tree, 35, 10, DIRTY, NULL, NULL);
}

static int empty_record_met(struct cpc_io_tree *tree)
{
	second(tree)->bits = 0;
	return cpc_io_tree_set(tree, 32, 2, DIRTY, NULL, NULL);
}

static int inverted_record_met(struct cpc_io_tree *tree)
{
	second(tree)->start = 45;
	return cpc_io_tree_clear(tree, 0, 100, DIRTY, NULL, NULL);
}

static int record_out_of_order_met(struct cpc_io_tree *tree)
{
	tree->first->end = 32;
	return cpc_io_tree_clear(tree, 0, 100, DIRTY, NULL, NULL);
}

static int empty_record_swept(struct cpc_io_tree *tree)
{
	tree->sweep_records = 1;
	second(tree)->bits = 0;
	return cpc_io_tree_clear(tree, 0, 100, DIRTY, NULL, NULL);
}

static int hidden_record_swept(struct cpc_io_tree *tree)
{
	tree->sweep_records = 1;
	second(tree)->flags &= ~CPC_IO_REC_IN_TREE;
	return cpc_io_tree_clear(tree, 0, 100, DIRTY, NULL, NULL);
}

static int overlap_swept(struct cpc_io_tree *tree)
{
	tree->sweep_records = 1;
	tree->first->end = 32;
	return cpc_io_tree_clear(tree, 0, 100, CPC_IO_WRITEBACK, NULL, NULL);
}

/* Nobody sleeps, but the record says so, and that it has them still when its bits are gone. */
static int record_with_sleepers_swept(struct cpc_io_tree *tree)
{
	static struct cpc_io_waiter stranger;

	tree->sweep_records = 1;
	second(tree)->flags |= CPC_IO_REC_WAITERS;
	stranger.record = second(tree);
	cpc_list_add_tail(&tree->sleepers, &stranger.node);
	return cpc_io_tree_clear(tree, 0, 100, DIRTY, NULL, NULL);
}

static int no_spare(struct cpc_io_tree *tree)
{
	tree->spares = NULL;
	return cpc_io_tree_clear(tree, 34, 2, DIRTY, NULL, NULL);
}

static int spare_in_the_tree(struct cpc_io_tree *tree)
{
	tree->spares->flags |= CPC_IO_REC_IN_TREE;
	return cpc_io_tree_clear(tree, 34, 2, DIRTY, NULL, NULL);
}

/* The internal calls below could not get there through the door unless our own code is wrong. */
static int with_op(struct cpc_io_tree *tree, int (*run)(struct cpc_io_op *op))
{
	struct cpc_io_op op;
	int err = cpc_io_begin(&op, tree, "clear", 30, 10);

	return err ? err : cpc_io_finish(&op, run(&op));
}

static int do_insert_left(struct cpc_io_op *op)
{
	struct cpc_io_state *rec;

	return cpc_io_record_insert(op, second(op->tree), 15, 25, DIRTY, &rec);
}

static int insert_over_left(struct cpc_io_tree *tree)
{
	return with_op(tree, do_insert_left);
}

static int do_insert_right(struct cpc_io_op *op)
{
	struct cpc_io_state *rec;

	return cpc_io_record_insert(op, second(op->tree), 25, 35, DIRTY, &rec);
}

static int insert_over_right(struct cpc_io_tree *tree)
{
	return with_op(tree, do_insert_right);
}

static int do_erase(struct cpc_io_op *op)
{
	return cpc_io_record_erase(op, second(op->tree));
}

static int erase_outside(struct cpc_io_tree *tree)
{
	second(tree)->flags &= ~CPC_IO_REC_IN_TREE;
	return with_op(tree, do_erase);
}

static int erase_with_sleepers(struct cpc_io_tree *tree)
{
	second(tree)->flags |= CPC_IO_REC_WAITERS;
	return with_op(tree, do_erase);
}

static int do_split(struct cpc_io_op *op)
{
	struct cpc_io_state *rec;

	return cpc_io_record_split(op, second(op->tree), 35, &rec);
}

static int split_outside(struct cpc_io_tree *tree)
{
	second(tree)->flags &= ~CPC_IO_REC_IN_TREE;
	return with_op(tree, do_split);
}

static int do_split_at_end(struct cpc_io_op *op)
{
	struct cpc_io_state *rec;

	return cpc_io_record_split(op, second(op->tree), 40, &rec);
}

static int split_at_end(struct cpc_io_tree *tree)
{
	return with_op(tree, do_split_at_end);
}

static int merge_outside(struct cpc_io_tree *tree)
{
	tree->first->flags &= ~CPC_IO_REC_IN_TREE;
	tree->first->end = 30;
	return cpc_io_tree_set(tree, 35, 1, DIRTY, NULL, NULL);
}

static int unlock_of_unlocked(struct cpc_io_tree *tree)
{
	cpc_io_tree_unlock(tree, 30, 10, NULL);
	return cpc_io_tree_lock(tree, 0, 1, NULL);
}

static int unlock_of_a_part(struct cpc_io_tree *tree)
{
	cpc_io_tree_lock(tree, 30, 10, NULL);
	cpc_io_tree_unlock(tree, 30, 5, NULL);
	return cpc_io_tree_lock(tree, 0, 1, NULL);
}

static int dropped_twice(struct cpc_io_tree *tree)
{
	struct cpc_io_state *cached = NULL, *copy;

	cpc_io_tree_lock(tree, 30, 10, &cached);
	copy = cached;
	cpc_io_tree_release(tree, &cached);
	cpc_io_tree_release(tree, &copy);
	return cpc_io_tree_lock(tree, 0, 1, NULL);
}

static const struct {
	int (*broken)(struct cpc_io_tree *tree);
	const char *what, *file, *func, *op, *record;
} cases[] = {
    {changeset_fails, "the changeset failed to take a change", "io-change.c", "report",
     "clear of [35, 45)", "record [30, 40) bits 0x2"},
    {record_outside_the_tree_met, "met a record outside the tree", "io-change.c", "step",
     "clear of [35, 45)", "record [30, 40) bits 0x2"},
    {empty_record_met, "met an empty record", "io-change.c", "step", "set of [32, 34)",
     "record [30, 40) bits 0x0"},
    {inverted_record_met, "met an empty record", "io-change.c", "step", "clear of [0, 100)",
     "record [45, 40) bits 0x2"},
    {record_out_of_order_met, "met a record out of order", "io-change.c", "step",
     "clear of [0, 100)", "record [30, 40) bits 0x2"},
    {empty_record_swept, "met an empty record", "io-change.c", "step", "clear of [0, 100)",
     "record [30, 40) bits 0x0"},
    {record_with_sleepers_swept, "erase of a record with sleepers", "io-change.c", "change_swept",
     "clear of [0, 100)", "record [30, 40) bits 0x2"},
    {hidden_record_swept, "a sweep met more or fewer records", "io-record.c", "cpc_io_record_sweep",
     "clear of [0, 100)", "no record"},
    {overlap_swept, "records overlap after a sweep", "io-record.c", "rebuild", "clear of [0, 100)",
     "record [30, 40) bits 0x2"},
    {no_spare, "no spare record was reserved", "io-record.c", "cpc_io_record_insert",
     "clear of [34, 36)", "record [30, 36) bits 0x2"},
    {spare_in_the_tree, "insert of a record that is in the tree", "io-record.c",
     "cpc_io_record_insert", "clear of [34, 36)", "record [0, 0) bits 0x0"},
    {insert_over_left, "insert over the record on the left", "io-record.c", "cpc_io_record_insert",
     "clear of [30, 40)", "record [10, 20) bits 0x2"},
    {insert_over_right, "insert over the record on the right", "io-record.c",
     "cpc_io_record_insert", "clear of [30, 40)", "record [30, 40) bits 0x2"},
    {erase_outside, "erase of a record outside the tree", "io-record.c", "cpc_io_record_erase",
     "clear of [30, 40)", "record [30, 40) bits 0x2"},
    {erase_with_sleepers, "erase of a record with sleepers", "io-record.c", "cpc_io_record_erase",
     "clear of [30, 40)", "record [30, 40) bits 0x2"},
    {split_outside, "split of a record outside the tree", "io-record.c", "cpc_io_record_split",
     "clear of [30, 40)", "record [30, 40) bits 0x2"},
    {split_at_end, "split at no inner point of the record", "io-record.c", "cpc_io_record_split",
     "clear of [30, 40)", "record [30, 40) bits 0x2"},
    {merge_outside, "merge with a record outside the tree", "io-record.c", "cpc_io_record_join",
     "set of [35, 36)", "record [10, 30) bits 0x2"},
    {unlock_of_unlocked, "unlock of bytes that are not locked", "io-tree.c", "verify_locked",
     "unlock of [30, 40)", "record [30, 40) bits 0x2"},
    {unlock_of_a_part, "unlock ends inside a locked record", "io-tree.c", "verify_locked",
     "unlock of [30, 35)", "record [30, 40) bits 0x3"},
    {dropped_twice, "a cached reference was dropped twice", "io-record.c", "cpc_io_record_put",
     "release of", "record [30, 40) bits 0x3"},
};

/* In the child: breaks the tree; exits 0 if it was found once and the tree is dead after. */
static int child(unsigned i)
{
	static struct cpc_io_tree tree;
	bool result;

	build(&tree, on_fatal);
	if (cases[i].broken(&tree) != -EIO || nr_fatal != 1)
		return 1;
	if (cpc_io_tree_set(&tree, 0, 1, DIRTY, NULL, NULL) != -EIO ||
	    cpc_io_tree_test(&tree, 0, 1, DIRTY, CPC_IO_MATCH_ANY, &result) != -EIO)
		return 2;
	return nr_fatal == 1 ? 0 : 3;
}

/* Runs `run(arg)` in a child with stdout and stderr in a pipe. Returns its wait status. */
static int run_child(int (*run)(unsigned), unsigned arg, char *text, size_t size)
{
	int fd[2], status;
	size_t used = 0;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(fd), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		signal(SIGABRT, SIG_DFL);
		dup2(fd[1], 1);
		dup2(fd[1], 2);
		status = run(arg);
		fflush(NULL);
		_exit(status);
	}
	close(fd[1]);
	while (used < size - 1 && (n = read(fd[0], text + used, size - 1 - used)) > 0)
		used += (size_t)n;
	text[used] = 0;
	close(fd[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void every_fatal_branch_says_where_and_stops_the_tree(void **state)
{
	char text[1024], where[64], func[64];
	unsigned i;
	int status, line;

	for (i = 0; i < CPC_ARRAY_SIZE(cases); i++) {
		const char *at;

		status = run_child(child, i, text, sizeof(text));
		print_message("%s", text);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			fail_msg("case %u (%s): status 0x%x: %s", i, cases[i].what, status, text);
		snprintf(where, sizeof(where), "%s:", cases[i].file);
		snprintf(func, sizeof(func), " %s(): ", cases[i].func);
		assert_non_null(strstr(text, cases[i].what));
		assert_non_null(strstr(text, func));
		assert_non_null(strstr(text, cases[i].op));
		assert_non_null(strstr(text, cases[i].record));
		at = strstr(text, where);
		assert_non_null(at);
		line = atoi(at + strlen(where));
		assert_true(line > 20);
	}
}

static int child_default(unsigned arg)
{
	static struct cpc_io_tree tree;

	build(&tree, NULL);
	cpc_io_tree_unlock(&tree, 30, 10, NULL);
	return 0;
}

static void without_a_fatal_function_the_process_aborts_with_the_message(void **state)
{
	char text[1024];
	int status = run_child(child_default, 0, text, sizeof(text));

	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "unlock of bytes that are not locked"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_fatal_branch_says_where_and_stops_the_tree),
	    cmocka_unit_test(without_a_fatal_function_the_process_aborts_with_the_message),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
