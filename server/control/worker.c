/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread for requests that may wait for the device. Its queue holds one job a client. */
#include "control-internal.h"

#include "lib/hooks.h"

void cpc_job_free(struct cpc_job *job)
{
	json_object_put(job->request);
	json_object_put(job->reply);
	cpc_free(job);
}

static struct cpc_job *take_locked(struct cpc_list *queue)
{
	struct cpc_job *job;

	if (cpc_list_empty(queue))
		return NULL;
	job = cpc_list_first(queue, struct cpc_job, node);
	cpc_list_del(&job->node);
	return job;
}

/* Waits for a job; NULL when the worker is to end. Jobs still queued then are dropped by stop. */
static struct cpc_job *wait_for_job(struct cpc_control *control)
{
	struct cpc_job *job = NULL;

	cpc_mutex_lock(&control->lock);
	while (!control->stopping && !(job = take_locked(&control->queue)))
		cpc_cond_wait(&control->work, &control->lock);
	cpc_mutex_unlock(&control->lock);
	return job;
}

static void *worker_main(void *arg)
{
	struct cpc_control *control = arg;
	struct cpc_job *job;

	while ((job = wait_for_job(control))) {
		job->reply = control->handler.run(control->handler.ctx, job->request);
		cpc_mutex_lock(&control->lock);
		cpc_list_add_tail(&control->done, &job->node);
		cpc_mutex_unlock(&control->lock);
		ev_async_send(control->loop, &control->wake);
	}
	return NULL;
}

int cpc_worker_start(struct cpc_control *control)
{
	return cpc_thread_start(&control->worker_thread, "coppice-verbs", worker_main, control);
}

static void drop_queue(struct cpc_list *queue)
{
	struct cpc_job *job;

	while ((job = take_locked(queue)))
		cpc_job_free(job);
}

/* `stopping` is set. No other thread touches the queues any more when this returns. */
void cpc_worker_stop(struct cpc_control *control)
{
	pthread_join(control->worker_thread, NULL);
	drop_queue(&control->queue);
	drop_queue(&control->done);
}

int cpc_worker_submit(struct cpc_client *client, struct json_object *request)
{
	struct cpc_control *control = client->control;
	struct cpc_job *job = cpc_zalloc(sizeof(*job));

	if (!job) {
		json_object_put(request);
		return -ENOMEM;
	}
	job->client = client;
	job->request = request;
	cpc_mutex_lock(&control->lock);
	cpc_list_add_tail(&control->queue, &job->node);
	cpc_cond_signal(&control->work);
	cpc_mutex_unlock(&control->lock);
	return 0;
}

struct cpc_job *cpc_worker_take_done(struct cpc_control *control)
{
	struct cpc_job *job;

	cpc_mutex_lock(&control->lock);
	job = take_locked(&control->done);
	cpc_mutex_unlock(&control->lock);
	return job;
}
