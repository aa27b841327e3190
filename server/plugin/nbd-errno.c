/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin/nbd-errno.h"

int cpc_nbd_errno(int err, bool fast_zero)
{
	switch (-err) {
	case EPERM:
	case EROFS:
		return EROFS;
	case ENOMEM:
	case ENOSPC:
	case EINVAL:
	case ESHUTDOWN:
		return -err;
	case EDQUOT:
	case EFBIG:
		return ENOSPC;
	case EOPNOTSUPP:
		return fast_zero ? EOPNOTSUPP : EIO;
	default:
		return EIO;
	}
}
