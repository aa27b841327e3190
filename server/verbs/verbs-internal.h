/* SPDX-License-Identifier: BSD-3-Clause */
/* verbs-internal: what the files of this folder share. */
#ifndef CPC_VERBS_INTERNAL_H
#define CPC_VERBS_INTERNAL_H

#include "protocol/reply.h"
#include "verbs/verbs.h"

struct json_object *cpc_verb_stats(const struct cpc_verbs *verbs, struct json_object *args);
struct json_object *cpc_verb_scrub(const struct cpc_verbs *verbs, struct json_object *args);
struct json_object *cpc_verb_metrics(const struct cpc_verbs *verbs, struct json_object *args);

#endif
