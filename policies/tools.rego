# The operators' policy for tool calls. `input` holds tenant, principal, role, persona, tool,
# category, operation, version, tags, requirements {os_access, network_access, file_system} and
# arguments (long strings as {"characters": n}). A decision is
# {"allow": …, "reason": …, "park": …}. If `park` is true, an operator can allow the call.
# A call that no rule allows is denied.

package moothall.tools

import rego.v1

default decision := {"allow": false, "reason": "no rule allows it"}

# The sandbox and the grants limit calls that stay in the workspace.
decision := {"allow": true} if input.operation in {"read", "write", "execute"}

# Each call that acts beyond the workspace needs an operator's approval.
decision := {"allow": false, "reason": "it acts beyond the workspace", "park": true} if input.operation == "outside"
