/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * nbd-errno: the one place where an errno of the engine becomes one for nbdkit. NBD knows few
 * errors and nbdkit turns each one it does not list into EINVAL, which tells a client that it
 * asked for something wrong; so whatever is not known here is EIO.
 */
#ifndef CPC_PLUGIN_NBD_ERRNO_H
#define CPC_PLUGIN_NBD_ERRNO_H

#include "lib/base.h"

/*
 * `err` is negative, as the engine returns it; the result is positive. EOPNOTSUPP is passed on only
 * for a request that asked for a fast zero: nbdkit answers it with a fallback of its own otherwise,
 * which in versions before 1.44 writes to wrong places.
 */
int cpc_nbd_errno(int err, bool fast_zero);

#endif
