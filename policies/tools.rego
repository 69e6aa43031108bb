# What operators' policy says of a tool call. `input` holds tenant, principal, role, persona, tool, category, operation,
# version, tags, requirements {os_access, network_access, file_system} and arguments (long strings as {"characters": n}).
# A decision is {"allow": …, "reason": …, "park": …}; with park an operator may allow the call nevertheless.
# Nothing is allowed that no rule allows.

package moothall.tools

import rego.v1

default decision := {"allow": false, "reason": "no rule allows it"}

# What stays in the workspace is bounded by its walls, and by the grants.
decision := {"allow": true} if input.operation in {"read", "write", "execute"}

# What acts beyond it needs a person's word each time.
decision := {"allow": false, "reason": "it acts beyond the workspace", "park": true} if input.operation == "outside"
